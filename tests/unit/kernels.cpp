// SPDX-License-Identifier: Apache-2.0
// The kernels of the optimizers: bits, wherever an element lies; values, against the formulas in double and against
// LibTorch's fused kernels; the rounded copies of masters.

#include <dovetail/optim/adagrad.hpp>
#include <dovetail/optim/adam.hpp>
#include <dovetail/optim/adamw.hpp>
#include <dovetail/optim/clip.hpp>
#include <dovetail/optim/sgd.hpp>

#include <catch2/catch.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace dt = dovetail;
namespace kernel = dovetail::detail;

namespace {

using Tensors = std::vector<torch::Tensor>;

const auto all_dtypes = {torch::kFloat32, torch::kFloat64, torch::kBFloat16, torch::kHalf};

/// The sets of instructions that this machine has.
std::vector<kernel::Cpu> cpus() {
  std::vector<kernel::Cpu> here{kernel::Cpu::portable};
  if (kernel::this_cpu() >= kernel::Cpu::avx2) here.push_back(kernel::Cpu::avx2);
  if (kernel::this_cpu() >= kernel::Cpu::avx512) here.push_back(kernel::Cpu::avx512);
  return here;
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// One way of stepping: a rule with its options, at some step.
struct Way {
  std::string name;
  int states;
  std::function<void(kernel::Cpu, const kernel::UpdateArrays&, int64_t, int64_t)> update;
  /// The formula in double: parameter, gradient (divided), state.
  std::function<void(double&, double, double*)> formula;
  /// LibTorch's kernel.
  std::function<void(Tensors p, Tensors g, std::vector<Tensors> s, const std::optional<torch::Tensor>& divisor)> fused;
};

constexpr double divisor = 3, lr = 0.01;
constexpr int64_t step = 4;

template <class Step>
auto update_by(const Step& at) {
  return [at](kernel::Cpu cpu, const kernel::UpdateArrays& arrays, int64_t first, int64_t last) {
    if (arrays.format == dt::Format::fp64)
      kernel::update_range(cpu, at.template rule<double>(), arrays, first, last);
    else
      kernel::update_range(cpu, at.template rule<float>(), arrays, first, last);
  };
}

Tensors counters(const Tensors& p) {
  return Tensors(p.size(), torch::full({1}, double(step)));
}

Way adam(bool decoupled, bool amsgrad, bool maximize, double weight_decay) {
  const double beta1 = 0.8, beta2 = 0.95, eps = 1e-3, sign = maximize ? -1 : 1;
  Way way;
  way.name = std::string(decoupled ? "AdamW" : "Adam") + (amsgrad ? " amsgrad" : "") + (maximize ? " maximize" : "") +
             " weight decay " + std::to_string(weight_decay);
  way.states = amsgrad ? 3 : 2;
  way.update = update_by(kernel::AdamStep{.scale = sign / divisor,
                                          .lr = lr,
                                          .beta1 = beta1,
                                          .beta2 = beta2,
                                          .eps = eps,
                                          .weight_decay = weight_decay,
                                          .decoupled = decoupled,
                                          .amsgrad = amsgrad,
                                          .step = step});
  way.formula = [=](double& p, double g, double* s) {
    g *= sign;
    if (decoupled)
      p -= lr * weight_decay * p;
    else
      g += weight_decay * p;
    s[0] = beta1 * s[0] + (1 - beta1) * g;
    s[1] = beta2 * s[1] + (1 - beta2) * g * g;
    if (amsgrad) s[2] = std::max(s[2], s[1]);
    const double first = s[0] / (1 - std::pow(beta1, step)), second = s[amsgrad ? 2 : 1] / (1 - std::pow(beta2, step));
    p -= lr * first / (std::sqrt(second) + eps);
  };
  way.fused = [=](Tensors p, Tensors g, std::vector<Tensors> s, const std::optional<torch::Tensor>& by) {
    const auto call = [&](auto kernel) {
      kernel(p, g, s[0], s[1], amsgrad ? at::TensorList(s[2]) : at::TensorList(), counters(p), lr, beta1, beta2,
             weight_decay, eps, amsgrad, maximize, by, std::nullopt);
    };
    decoupled ? call([](auto&&... a) { at::_fused_adamw_(a...); }) : call([](auto&&... a) { at::_fused_adam_(a...); });
  };
  return way;
}

Way sgd(double momentum, double dampening, double weight_decay, bool nesterov, bool maximize, bool first) {
  const double sign = maximize ? -1 : 1;
  Way way;
  way.name = "SGD momentum " + std::to_string(momentum) + " dampening " + std::to_string(dampening) + " weight decay " +
             std::to_string(weight_decay) + (nesterov ? " nesterov" : "") + (maximize ? " maximize" : "") +
             (first ? " first" : "");
  way.states = momentum != 0;
  way.update = update_by(kernel::SGDStep{.scale = sign / divisor,
                                         .lr = lr,
                                         .momentum = momentum,
                                         .dampening = dampening,
                                         .weight_decay = weight_decay,
                                         .nesterov = nesterov,
                                         .first = first});
  way.formula = [=](double& p, double g, double* s) {
    g = sign * g + weight_decay * p;
    if (momentum != 0) {
      s[0] = first ? g : momentum * s[0] + (1 - dampening) * g;
      g = nesterov ? g + momentum * s[0] : s[0];
    }
    p -= lr * g;
  };
  way.fused = [=](Tensors p, Tensors g, std::vector<Tensors> s, const std::optional<torch::Tensor>& by) {
    at::_fused_sgd_(p, g, momentum != 0 ? at::TensorList(s[0]) : at::TensorList(), weight_decay, momentum, lr,
                    dampening, nesterov, maximize, first, by, std::nullopt);
  };
  return way;
}

Way adagrad(double weight_decay, bool maximize) {
  const double eps = 1e-3, lr_decay = 0.1, sign = maximize ? -1 : 1;
  Way way;
  way.name = std::string("Adagrad weight decay ") + std::to_string(weight_decay) + (maximize ? " maximize" : "");
  way.states = 1;
  way.update = update_by(kernel::AdagradStep{
      .scale = sign / divisor, .lr = lr, .lr_decay = lr_decay, .weight_decay = weight_decay, .eps = eps, .step = step});
  way.formula = [=](double& p, double g, double* s) {
    g = sign * g + weight_decay * p;
    s[0] += g * g;
    p -= lr / (1 + double(step - 1) * lr_decay) * g / (std::sqrt(s[0]) + eps);
  };
  way.fused = [=](Tensors p, Tensors g, std::vector<Tensors> s, const std::optional<torch::Tensor>& by) {
    at::_fused_adagrad_(p, g, s[0], counters(p), lr, lr_decay, weight_decay, eps, maximize, by, std::nullopt);
  };
  return way;
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (bool maximize : {false, true}) {
    for (double weight_decay : {0.0, 0.1}) {
      for (bool decoupled : {false, true})
        for (bool amsgrad : {false, true}) ways.push_back(adam(decoupled, amsgrad, maximize, weight_decay));
      ways.push_back(adagrad(weight_decay, maximize));
      for (bool first : {false, true}) {
        ways.push_back(sgd(0.9, 0, weight_decay, false, maximize, first));
        ways.push_back(sgd(0.9, 0.5, weight_decay, false, maximize, first));
        ways.push_back(sgd(0.9, 0, weight_decay, true, maximize, first));
      }
      ways.push_back(sgd(0, 0, weight_decay, false, maximize, false));
    }
  }
  return ways;
}

/// Parameter, gradient, and as much state as the way has, of `count` elements.
struct Arrays {
  Arrays(const Way& way, torch::ScalarType dtype, torch::ScalarType grad_dtype, int64_t count) {
    torch::manual_seed(5);
    param = torch::randn({count}, torch::kFloat64).to(dtype);
    grad = torch::randn({count}, torch::kFloat64).mul_(divisor).to(grad_dtype);
    const bool zero = way.name.find("first") != std::string::npos;
    for (int k = 0; k < way.states; ++k)
      state.push_back((zero                       ? torch::zeros({count})
                       : k == 0 && way.states > 1 ? torch::randn({count})
                                                  : torch::rand({count}))
                          .to(dtype));
  }
  kernel::UpdateArrays pointers() const {
    kernel::UpdateArrays arrays{.format = kernel::format_of(param.scalar_type()),
                                .grad_format = kernel::format_of(grad.scalar_type())};
    arrays.param = kernel::bytes_of(param);
    arrays.grad = kernel::const_bytes_of(grad);
    for (std::size_t k = 0; k < state.size(); ++k) arrays.state[k] = kernel::bytes_of(state[k]);
    return arrays;
  }
  Tensors all() const {
    Tensors list{param};
    list.insert(list.end(), state.begin(), state.end());
    return list;
  }
  torch::Tensor param, grad;
  Tensors state;
};

/// The distance of neighbouring numbers at 1.
double spacing(torch::ScalarType dtype) {
  return dtype == torch::kFloat64    ? 0x1p-52
         : dtype == torch::kFloat32  ? 0x1p-23
         : dtype == torch::kBFloat16 ? 0x1p-7
                                     : 0x1p-10;
}

/// Largest difference, in spacings at numbers of the size of the second or 1.
double apart(const torch::Tensor& a, const torch::Tensor& b, torch::ScalarType dtype) {
  const auto wide = b.to(torch::kFloat64);
  return ((a.to(torch::kFloat64) - wide).abs() / wide.abs().clamp_min(1)).max().item<double>() / spacing(dtype);
}

dt::Parameters named(const Tensors& tensors) {
  dt::Parameters parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    parameters.push_back({"p" + std::to_string(i), tensors[i].sizes().vec(), tensors[i]});
  return parameters;
}

/// Numbers at which rounding to a format of 16 bits can go wrong: all of that format and what lies between two of them,
/// and floats of all kinds.
std::vector<float> numbers_to_round(bool brain) {
  std::vector<float> numbers;
  for (uint32_t low = 0; low < 0x10000; ++low) {
    const uint16_t half = uint16_t(low);
    const float exact = brain ? std::bit_cast<float>(low << 16) : float(c10::Half(half, c10::Half::from_bits()));
    for (int32_t more : {0, 1, 2, 3}) {
      const uint32_t bits = std::bit_cast<uint32_t>(exact), between = brain ? 0x4000 : 0x800;
      numbers.push_back(std::bit_cast<float>(bits + uint32_t(more) * between));
      numbers.push_back(std::bit_cast<float>(bits + uint32_t(more) * between + 1));
      numbers.push_back(std::bit_cast<float>(bits + uint32_t(more) * between - 1));
    }
  }
  std::mt19937 random(3);
  for (int i = 0; i < 1000003; ++i) numbers.push_back(std::bit_cast<float>(uint32_t(random())));
  return numbers;
}

}  // namespace

TEST_CASE("conversions round to nearest even and keep NaN, infinities and subnormal numbers", "[kernels]") {
  for (auto format : {dt::Format::bf16, dt::Format::fp16}) {
    const bool brain = format == dt::Format::bf16;
    std::vector<float> wide = numbers_to_round(brain);
    const auto count = int64_t(wide.size());
    REQUIRE(count % 16 != 0);
    const torch::Tensor expected = torch::from_blob(wide.data(), {count}).to(brain ? torch::kBFloat16 : torch::kHalf);
    const auto* its = static_cast<const uint16_t*>(expected.const_data_ptr());
    wide.resize(wide.size() + 15);
    for (auto cpu : cpus()) {
      CAPTURE(int(cpu), brain);
      std::vector<uint16_t> low(std::size_t(count) + 1, 0x1234);
      kernel::narrow(cpu, format, wide.data(), low.data(), count);
      CHECK(low.back() == 0x1234);  // nothing beyond the end is written
      std::vector<float> back(wide.size());
      kernel::widen(cpu, format, low.data(), back.data(), count);
      int64_t wrong = 0;
      for (int64_t i = 0; i < count; ++i) {
        const float was = wide[std::size_t(i)], is = back[std::size_t(i)];
        const float exact =
            brain ? std::bit_cast<float>(uint32_t(its[i]) << 16) : float(c10::Half(its[i], c10::Half::from_bits()));
        if (std::isnan(was))
          wrong += !std::isnan(is);
        else
          wrong += low[std::size_t(i)] != its[i] || std::bit_cast<uint32_t>(is) != std::bit_cast<uint32_t>(exact);
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("an update has the same bits at every offset and length, with every set of instructions", "[kernels]") {
  constexpr int64_t size = 130;
  int64_t checked = 0;
  for (const Way& way :
       {adam(true, false, false, 0.1), adam(false, true, true, 0.1), sgd(0.9, 0, 0.1, true, false, false),
        sgd(0, 0, 0.1, false, false, false), adagrad(0.1, false)})
    for (auto dtype : all_dtypes) {
      const Arrays before(way, dtype, dtype, size);
      Arrays alone(way, dtype, dtype, size);
      for (int64_t i = 0; i < size; ++i) way.update(kernel::Cpu::portable, alone.pointers(), i, i + 1);
      for (auto cpu : cpus())
        for (int64_t length = 1; length <= 100; ++length) {
          const int64_t first = length * 7 % 29, last = first + length;
          Arrays arrays(way, dtype, dtype, size);
          way.update(cpu, arrays.pointers(), first, last);
          bool same = true;
          for (std::size_t k = 0; k < arrays.all().size(); ++k) {
            torch::Tensor expected = before.all()[k].clone();  // what lies outside stays
            expected.slice(0, first, last).copy_(alone.all()[k].slice(0, first, last));
            same &= same_bits(arrays.all()[k], expected);
          }
          CAPTURE(way.name, int(cpu), length, first);
          CHECK(same);
          ++checked;
        }
    }
  CHECK(checked == int64_t(5 * 4 * 100 * cpus().size()));
}

TEST_CASE("an update follows its formula, and LibTorch's kernels, within roundings", "[kernels]") {
  constexpr int64_t size = 1003;
  for (const Way& way : all_ways())
    for (auto dtype : all_dtypes) {
      CAPTURE(way.name, c10::toString(dtype));
      const Arrays before(way, dtype, dtype, size);
      Arrays ours(way, dtype, dtype, size), theirs(way, dtype, dtype, size);
      way.update(kernel::this_cpu(), ours.pointers(), 0, size);
      Tensors formula;
      for (const auto& tensor : before.all()) formula.push_back(tensor.to(torch::kFloat64).clone());
      const torch::Tensor grad = before.grad.to(torch::kFloat64);
      for (int64_t i = 0; i < size; ++i) {
        double state[3] = {};
        for (int k = 0; k < way.states; ++k) state[k] = formula[std::size_t(k + 1)].const_data_ptr<double>()[i];
        way.formula(formula[0].mutable_data_ptr<double>()[i], grad.const_data_ptr<double>()[i] / divisor, state);
        for (int k = 0; k < way.states; ++k) formula[std::size_t(k + 1)].mutable_data_ptr<double>()[i] = state[k];
      }
      std::vector<Tensors> state(3);
      for (std::size_t k = 0; k < theirs.state.size(); ++k) state[k] = {theirs.state[k]};
      way.fused({theirs.param}, {theirs.grad}, state, torch::full({1}, divisor));
      const bool low = spacing(dtype) > 1e-6;
      for (std::size_t k = 0; k < formula.size(); ++k) {
        CAPTURE(k);
        CHECK(apart(ours.all()[k], formula[k], dtype) < (low ? 0.51 : 4));  // of a low format: the nearest
        CHECK(apart(ours.all()[k], theirs.all()[k], dtype) < (low ? 1.01 : dtype == torch::kFloat64 ? 1e9 : 4));
      }
    }
}

TEST_CASE("gradients of 16 bits step fp32 parameters as the same numbers in fp32 do", "[kernels]") {
  for (auto low : {torch::kBFloat16, torch::kHalf})
    for (int64_t size : {1, 15, 16, 1000, 5003}) {
      torch::manual_seed(2);
      auto param = torch::randn({size}).set_requires_grad(true), other = param.detach().clone().set_requires_grad(true);
      dt::AdamW first(named({param}), {.lr = 1e-2}), second(named({other}), {.lr = 1e-2});
      for (int i = 0; i < 3; ++i) {
        const auto grad = torch::randn({size}).to(low);
        param.unsafeGetTensorImpl()->mutable_grad() = grad;
        other.mutable_grad() = grad.to(torch::kFloat32);
        first.step(1.7);
        second.step(1.7);
      }
      CHECK(same_bits(param.detach(), other.detach()));
      CHECK(first.calls() == 1);
    }
}

TEST_CASE("the number of threads changes no bit, and threads are used", "[kernels]") {
  constexpr int64_t size = 300007;
  const auto run = [&](int threads) {
    torch::set_num_threads(threads);
    torch::manual_seed(2);
    auto param = torch::randn({size}).set_requires_grad(true);
    param.mutable_grad() = torch::randn({size});
    dt::AdamW optimizer(named({param}), {.lr = 1e-2});
    for (int i = 0; i < 3; ++i) optimizer.step();
    return std::pair(param.detach().clone(), dt::squared_norm(param.detach()));
  };
  const auto one = run(1), two = run(2);
  CHECK(same_bits(one.first, two.first));
  CHECK(one.second == two.second);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<int> visits(1000);
  kernel::share_out(1000, [&](int64_t first, int64_t last) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    for (int64_t i = first; i < last; ++i) ++visits[std::size_t(i)];
  });
  CHECK(threads.size() == 2);
  CHECK(visits == std::vector<int>(1000, 1));
  torch::set_num_threads(1);
}

TEST_CASE("masters are published in the step, rounded as a cast rounds", "[kernels]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (auto dtype : {torch::kBFloat16, torch::kHalf})
    for (int64_t size : {9, 16, 70, 2050}) {
      torch::manual_seed(2);
      auto master = torch::randn({size});
      const std::vector<float> special{infinity, -infinity,  std::nanf(""), 0x1p-149f, -0x1p-130f,
                                       0x1p-24f, 0x1.8p-25f, 65519.99f,     -65520.f};
      for (std::size_t i = 0; i < special.size(); ++i) master[int64_t(i)] = special[i];
      master.set_requires_grad(true);
      const auto low = torch::zeros({size}, dtype);
      dt::SGD optimizer(named({master}), {.lr = 0});  // special values stay what they are
      optimizer.publish_into(master, low);
      master.mutable_grad() = torch::ones({size});
      const auto written = low._version();
      optimizer.step();
      CHECK(low._version() == written + 1);
      CHECK(torch::equal(low.isnan(), master.detach().isnan()));
      CHECK(torch::equal(low.nan_to_num(0), master.detach().to(dtype).nan_to_num(0)));
      for (auto& group : optimizer.param_groups()) group.options().set_lr(0.1);
      optimizer.step(0.5);
      CHECK(torch::equal(low.nan_to_num(0), master.detach().to(dtype).nan_to_num(0)));
      master.mutable_grad().reset();  // not stepped: nothing is written
      low.zero_();
      optimizer.step();
      CHECK(low.count_nonzero().item<int64_t>() == 0);
    }
}

TEST_CASE("masters merge where their rounded copies are adjacent as well", "[kernels]") {
  for (bool adjacent : {true, false}) {
    const auto data = torch::randn({12}), grads = torch::ones({12}), lows = torch::zeros({16}, torch::kBFloat16);
    Tensors masters, published;
    for (int64_t i = 0; i < 3; ++i) {
      masters.push_back(data.narrow(0, 4 * i, 4).view({2, 2}).detach().set_requires_grad(true));
      masters.back().mutable_grad() = grads.narrow(0, 4 * i, 4).view({2, 2});
      published.push_back(lows.narrow(0, i == 2 && !adjacent ? 12 : 4 * i, 4).view({2, 2}));
    }
    dt::AdamW optimizer(named(masters), {.lr = 0.1});
    for (std::size_t i = 0; i < 3; ++i) optimizer.publish_into(masters[i], published[i]);
    optimizer.step();
    CHECK(optimizer.runs() == (adjacent ? 1 : 2));
    for (std::size_t i = 0; i < 3; ++i) CHECK(torch::equal(published[i], masters[i].detach().to(torch::kBFloat16)));
    published[1].set_data(torch::zeros({2, 2}, torch::kBFloat16));  // found without being told
    optimizer.step();
    CHECK(optimizer.runs() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(torch::equal(published[i], masters[i].detach().to(torch::kBFloat16)));
    CHECK(optimizer.state_of(masters[0]).steps == 2);
  }
}

TEST_CASE("rounded copies have the strides of their masters", "[kernels]") {
  auto master = torch::randn({2, 3, 5, 5}).contiguous(torch::MemoryFormat::ChannelsLast).set_requires_grad(true);
  master.mutable_grad() = torch::ones({2, 3, 5, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto low = torch::zeros_like(master.detach()).to(torch::kHalf);
  dt::SGD optimizer(named({master}), {.lr = 0.1});
  optimizer.publish_into(master, low);
  optimizer.step();
  CHECK(torch::equal(low, master.detach().to(torch::kHalf)));
  CHECK_THROWS_WITH(
      optimizer.publish_into(master, low.contiguous()),
      "SGD cannot round a tensor of shape [2, 3, 5, 5] into one of shape [2, 3, 5, 5]: it goes from fp32 to "
      "bf16 or fp16, with equal sizes and strides.");
  CHECK_THROWS_AS(optimizer.publish_into(master, master.detach().clone()), dt::Error);
}

TEST_CASE("squared norms have the same bits with every set of instructions", "[kernels]") {
  torch::manual_seed(4);
  for (auto dtype : all_dtypes)
    for (int64_t count : {1, 31, 32, 33, 1000, 20011, 32768}) {
      const auto x = torch::randn({count}).to(dtype);
      const auto sum = [&](kernel::Cpu cpu) {
        return kernel::squared_norm_of_block(cpu, kernel::format_of(dtype), kernel::const_bytes_of(x), count);
      };
      for (auto cpu : cpus()) CHECK(sum(cpu) == sum(kernel::Cpu::portable));
      const double expected = x.to(torch::kFloat64).square().sum().item<double>();
      CHECK(std::abs(sum(kernel::this_cpu()) - expected) <= 1e-14 * double(count) * expected);
    }
}
