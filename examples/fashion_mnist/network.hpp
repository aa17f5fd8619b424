// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/dovetail.hpp>

/// Two convolutions and two linear layers for 28 x 28 grey images of ten classes. Each part is a Unit, so that FSDP
/// gathers and frees it by itself; without FSDP a Unit is the module it holds.
struct FeaturesImpl : torch::nn::Module {
  FeaturesImpl(int64_t in, int64_t out)
      : convolution(
            register_module("convolution", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)))) {}

  torch::Tensor forward(torch::Tensor x) { return torch::max_pool2d(torch::relu(convolution(x)), 2); }

  torch::nn::Conv2d convolution;
};
TORCH_MODULE(Features);

struct HeadImpl : torch::nn::Module {
  HeadImpl(int64_t features, int64_t hidden, int64_t classes)
      : hidden(register_module("hidden", torch::nn::Linear(features, hidden))),
        classes(register_module("classes", torch::nn::Linear(hidden, classes))) {}

  torch::Tensor forward(torch::Tensor x) { return classes(torch::relu(hidden(x.flatten(1)))); }

  torch::nn::Linear hidden, classes;
};
TORCH_MODULE(Head);

struct ConvNet : torch::nn::Module {
  ConvNet()
      : first(register_module("first", dovetail::Unit<Features>(1, 32))),
        second(register_module("second", dovetail::Unit<Features>(32, 64))),
        head(register_module("head", dovetail::Unit<Head>(64 * 7 * 7, 128, 10))) {}

  torch::Tensor forward(torch::Tensor images) { return head(second(first(images))); }

  dovetail::Unit<Features> first, second;
  dovetail::Unit<Head> head;
};
