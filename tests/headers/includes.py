# SPDX-License-Identifier: Apache-2.0
"""What the headers of Dovetail include: shared by the layer test and the header test."""

import pathlib
import re

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
LIBTORCH = ("torch/", "ATen/", "c10/", "caffe2/")


class Headers:
    """The headers below include/dovetail, by their path from there, with what each includes."""

    def __init__(self, include_folder):
        self.include_folder = pathlib.Path(include_folder).resolve()
        self.folder = self.include_folder / "dovetail"
        self.inside = {}  # header -> Dovetail's headers that it includes
        self.outside = {}  # header -> the others
        for path in sorted(self.folder.rglob("*.hpp")):
            header = path.relative_to(self.folder).as_posix()
            inside, outside = [], []
            for quote, name in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if name.startswith("dovetail/"):
                    inside.append(name.removeprefix("dovetail/"))
                elif quote == '"' and (path.parent / name).exists():
                    inside.append((path.parent / name).resolve().relative_to(self.folder).as_posix())
                else:
                    outside.append(name)
            self.inside[header], self.outside[header] = inside, outside

    def reached(self, header):
        """Every header of Dovetail that `header` includes, itself included, directly or not."""
        seen, todo = set(), [header]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += self.inside.get(at, [])
        return seen

    def way_to_libtorch(self, header):
        """(header, name): where `header`, directly or not, includes LibTorch; None where it does not."""
        for at in sorted(self.reached(header)):
            for name in self.outside.get(at, []):
                if name.startswith(LIBTORCH):
                    return at, name
        return None

    def policy_halves(self):
        """The torch-free halves: what registry.hpp reaches in strategy/ and precision/, and each x.hpp with an x_run.hpp."""
        reached = self.reached("registry.hpp") if "registry.hpp" in self.inside else set()
        return {
            header
            for header in self.inside
            if header.startswith(("strategy/", "precision/"))
            and (header in reached or header.removesuffix(".hpp") + "_run.hpp" in self.inside)
        }

    def torch_free(self):
        """The headers that have to do without LibTorch."""
        return {
            header for header in self.inside if header == "registry.hpp" or header.startswith(("core/", "launch/"))
        } | self.policy_halves()
