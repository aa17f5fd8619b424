// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <torch/cuda.h>
#include <torch/types.h>

#include <dovetail/comm/nccl.hpp>
#include <dovetail/launch/environment.hpp>

namespace dovetail::detail {

/// The device that this rank computes on: `wanted` is "cpu" or "cuda", the latter the GPU of the rank's number on its
/// machine, modulo the visible ones (a launcher may show each rank its own only).
/// @throws Error(arguments) for another word, and where there is no GPU or no code for one
[[nodiscard]] inline torch::Device run_device(std::string_view wanted, const Ranks& ranks) {
  if (wanted == "cpu") return torch::kCPU;
  const std::string asked = "the device is \"" + std::string(wanted) + "\", ";
  if (wanted != "cuda") throw Error(ExitCode::arguments, asked + "expected \"cpu\" or \"cuda\".");
  if (!has_nccl)
    throw Error(ExitCode::arguments, asked +
                                         "but this program was built without CUDA: link dovetail::cuda "
                                         "(cmake -DDOVETAIL_CUDA=ON), or use \"cpu\".");
  const auto gpus = torch::cuda::device_count();
  if (gpus == 0)
    throw Error(ExitCode::arguments, asked + "but this machine has no GPU to use (" + missing_gpu() +
                                         "): choose a machine with one, or use "
                                         "\"cpu\".");
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(ranks.local_rank % gpus)};
}

}  // namespace dovetail::detail
