// SPDX-License-Identifier: Apache-2.0
// What the real trainer says of a loss, optimizers and data that it cannot use, and a Unit of a result that hides its
// tensors: backward begins there.
// expect: dovetail-E024
// expect: dovetail-E026
// expect: dovetail-E027
// expect: dovetail: a Unit cannot see the tensors in what this function returns
// forbid: constraints not satisfied
// forbid: no matching function
// forbid: no member named
#include <dovetail/dovetail.hpp>

#include <vector>

namespace dt = dovetail;

struct Task {
  auto configure_model() const { return torch::nn::Linear(1, 1); }
#if DOVETAIL_BROKEN == 1
  void training_step(torch::nn::LinearImpl&, const dt::Batch&, dt::StepContext&) const {}
#else
  torch::Tensor training_step(torch::nn::LinearImpl& net, const dt::Batch& batch, dt::StepContext&) const {
    return net.forward(batch.data).mean();
  }
#endif
#if DOVETAIL_BROKEN == 2
  auto configure_optimizers(const dt::Parameters& parameters) const {
    std::vector<std::unique_ptr<dt::SGD>> list;
    list.push_back(std::make_unique<dt::SGD>(parameters, dt::SGDOptions{.lr = 0.1}));
    return list;
  }
#else
  auto configure_optimizers(const dt::Parameters& parameters) const {
    return std::make_unique<dt::SGD>(parameters, dt::SGDOptions{.lr = 0.1});
  }
#endif
};

struct Rows {
  int64_t size() const { return 4; }
#if DOVETAIL_BROKEN == 3
  dt::Batch fetch(int64_t) const {
    return {};
  }
#else
  void fetch(std::span<const int64_t> indices, dt::Batch& out) const {
    out.data = out.target = torch::ones({int64_t(indices.size()), 1});
  }
#endif
};

class Result {
 public:
  explicit Result(torch::Tensor logits) : logits_(std::move(logits)) {}
#if DOVETAIL_BROKEN != 4
  friend void for_each_tensor(Result& result, auto&& visit) {
    visit(result.logits_);
  }
#endif

 private:
  torch::Tensor logits_;
};

struct HeadImpl : torch::nn::Module {
  Result forward(torch::Tensor x) { return Result(x); }
};
TORCH_MODULE(Head);

int main() {
  dt::Unit<Head> head;
  head(torch::ones(1));
  dt::Trainer<dt::SingleDevice, dt::FP32> trainer;
  trainer.fit(Task{}, Rows{});
}
