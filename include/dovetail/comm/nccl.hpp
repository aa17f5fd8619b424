// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

// LibTorch's own feature test; the target dovetail::cuda defines it, and has the headers and libraries.
#ifdef USE_C10D_NCCL
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <dovetail/comm/collective_error.hpp>

namespace dovetail::detail {

#ifdef USE_C10D_NCCL

inline constexpr bool has_nccl = true;

/// Why CUDA finds no device, in its words.
[[nodiscard]] inline std::string missing_gpu() {
  try {
    c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find_first_of(".\n"));
  }
  return "none is visible";
}

/// NCCL's connections over ranks that have met in `store`, made at once: left to itself the first collective makes
/// them, within the time of a step. They are closed with the last reference.
[[nodiscard]] inline c10::intrusive_ptr<c10d::Backend> connect_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                                                    int rank, int size, c10::Device device,
                                                                    std::chrono::milliseconds timeout) {
  // Without a call of shutdown c10d complains on stderr at the end of a run.
  struct Closing final : c10d::ProcessGroupNCCL {
    using ProcessGroupNCCL::ProcessGroupNCCL;
    ~Closing() override {
      try {
        shutdown();
      } catch (const std::exception&) {  // a peer is gone: whoever waited for it knows
      }
    }
  };
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = timeout;
  auto nccl = c10::make_intrusive<Closing>(store, rank, size, std::move(options));
  nccl->setBoundDeviceId(device);
  nccl->eagerConnectSingleDevice(device);
  return nccl;
}

#else

inline constexpr bool has_nccl = false;

[[nodiscard]] inline std::string missing_gpu() {
  return "the program was built without CUDA";
}

[[nodiscard]] inline c10::intrusive_ptr<c10d::Backend> connect_nccl(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                                    c10::Device device, std::chrono::milliseconds) {
  throw Error(ExitCode::arguments, "a program built without CUDA cannot connect ranks on " + device.str() + ".");
}

#endif

}  // namespace dovetail::detail
