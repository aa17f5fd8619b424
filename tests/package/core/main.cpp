// SPDX-License-Identifier: Apache-2.0
// A program that only asks for the verdict: no LibTorch.
#include <dovetail/core/verdict.hpp>
#include <dovetail/registry.hpp>
#include <iostream>

namespace dt = dovetail;

int main() {
  std::cout << "fsdp with bf16-mixed: " << (dt::compatible<dt::FSDP, dt::BF16Mixed> ? "yes" : "no")
            << ", with apex-o2: " << (dt::compatible<dt::FSDP, dt::Apex<dt::O2>> ? "yes" : "no") << '\n';
}
