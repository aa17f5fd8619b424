// SPDX-License-Identifier: Apache-2.0
// A unit must see the tensors that come out of it: backward begins there.
// expect: dovetail: a Unit cannot see the tensors in what this function returns
// forbid: no matching function
// max-lines: 14
#include <dovetail/shard/unit.hpp>

class Result {
 public:
  explicit Result(torch::Tensor logits) : logits_(std::move(logits)) {}
#ifndef DOVETAIL_BROKEN
  friend void for_each_tensor(Result& result, auto&& visit) { visit(result.logits_); }
#endif

 private:
  torch::Tensor logits_;
};

struct HeadImpl : torch::nn::Module {
  Result forward(torch::Tensor x) { return Result(x); }
};
TORCH_MODULE(Head);

int main() {
  dovetail::Unit<Head> head;
  head(torch::ones(1));
}
