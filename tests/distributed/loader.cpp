// SPDX-License-Identifier: Apache-2.0 Loaders of 1, 2 and 3 real ranks: together they see every sample once, in the
// same order for every number of ranks, and in a steady state they allocate nothing.
#include <dovetail/comm/communicator.hpp>
#include <dovetail/data/fashion_mnist.hpp>
#include <dovetail/data/loader.hpp>
#include <dovetail/launch/launch.hpp>

#include "support/run_self.hpp"

// Counts what this thread asks the heap for: tensors' memory comes by posix_memalign, all else by malloc.
extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_memalign(size_t, size_t);
static thread_local int64_t allocations = 0;
extern "C" void* malloc(size_t bytes) {
  ++allocations;
  return __libc_malloc(bytes);
}
extern "C" int posix_memalign(void** result, size_t alignment, size_t bytes) {
  ++allocations;
  *result = __libc_memalign(alignment, bytes);
  return *result == nullptr ? ENOMEM : 0;
}

namespace {

using namespace dovetail;

void expect(bool holds, const std::string& what) {
  if (!holds) throw Error(ExitCode::user_code, what + " is not as expected");
}

/// A number that tells orders apart: the sum over positions of a hash of (position, target).
double epoch_print(Communicator& all, Loader<TensorDataset>& loader, int64_t epoch) {
  double print = 0, seen = 0;
  for (int64_t b = 0; b < loader.batches(); ++b) {
    const Batch& batch = loader.load(epoch, b);
    const int64_t first = loader.sampler().slice(b).first;
    const auto* target = batch.target.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < batch.samples(); ++i, ++seen)
      print += static_cast<double>(((first + i) * 2654435761 ^ (target[i] * 40503)) % 65536);
    // Every rank takes part in every micro-batch, with at least one row.
    auto rows = torch::tensor({static_cast<double>(batch.samples()), 1.0}, torch::kDouble);
    all.all_reduce(rows);
    expect(rows[0].item<double>() == static_cast<double>(loader.sampler().global_slice(b).size()), "the global batch");
    expect(rows[1].item<double>() == all.size() && batch.size() > 0, "the ranks that take part");
  }
  auto sums = torch::tensor({print, seen}, torch::kDouble);
  all.all_reduce(sums);
  expect(sums[1].item<double>() == static_cast<double>(loader.sampler().samples()), "the number of samples seen");
  return sums[0].item<double>();
}

int rank_main() {
  auto all = Communicator::connect(current_ranks());
  std::string prints;
  for (const int64_t n : {1, 2, 37, 101}) {
    const TensorDataset data(torch::rand({n, 3}), torch::arange(n));
    Loader loader(data, all.rank(), all.size(), SamplerOptions{.batch_size = 4});
    for (int64_t epoch = 0; epoch < 2; ++epoch)
      prints += " " + std::to_string(static_cast<int64_t>(epoch_print(all, loader, epoch)));
  }
  const auto steady = [&](const auto& data, const std::string& what) {
    Loader loader(data, all.rank(), all.size(), SamplerOptions{.batch_size = 7});
    loader.load(0, 0);
    const int64_t before = allocations;
    for (int64_t epoch = 0; epoch < 2; ++epoch)
      for (int64_t b = 0; b < std::min<int64_t>(loader.batches(), 200); ++b) loader.load(epoch, b);
    const int64_t made = allocations - before;
    expect(made == 0, "the count of allocations of " + what + ", " + std::to_string(made) + ",");
  };
  const int64_t before = allocations;
  const TensorDataset data(torch::rand({101, 3, 5}), torch::arange(101));
  const bool counts = allocations > before;
  expect(counts, "the counter of allocations");
  steady(data, "TensorDataset");
  steady(ImageDataset(torch::zeros({50, 28, 28}, torch::kByte), torch::zeros({50}, torch::kByte), 10, 0.5f, 0.5f, "x"),
         "ImageDataset");
  if (all.rank() == 0) std::cout << "orders:" + prints + "\n" << std::flush;
  all.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    ::alarm(60);
    const Launch launch(argc, argv);
    return rank_main();
  }
  ::alarm(200);
  support::Checks check;
  std::string orders;
  for (const std::string ranks : {"1", "2", "3"}) {
    const auto run = support::run_self({"--ranks", ranks, "work"}, {}, 60);
    check.ended(run, 0, "loaders of " + ranks + " ranks", {"orders: "});
    if (orders.empty()) orders = run.output;
    check.that(run.output == orders, "the same orders with " + ranks + " ranks: " + run.output);
  }
  std::cout << orders;
  return check.summary();
}
