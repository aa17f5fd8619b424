// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/comm/counts.hpp>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dovetail::testing {

/// What this rank did, in order: when collectives were started and waited for, and what a test notes in between.
class CommunicationLog {
 public:
  struct Event {
    enum class Kind { started, waited, noted } kind;
    Collective collective = Collective::barrier;
    std::int64_t bytes = 0;   ///< of the whole tensor, as in bytes_sent
    std::int64_t number = 0;  ///< of the collective; the same when it is waited for
    std::string note = {};
  };

  void note(std::string what) {
    const std::lock_guard lock(mutex_);
    events_.push_back({.kind = Event::Kind::noted, .note = std::move(what)});
  }
  [[nodiscard]] std::int64_t started(Collective collective, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    events_.push_back({Event::Kind::started, collective, bytes, ++collectives_});
    return collectives_;
  }
  /// The host is about to wait for a collective.
  void waited(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    events_.push_back({.kind = Event::Kind::waited, .number = number});
  }
  [[nodiscard]] std::vector<Event> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  [[nodiscard]] std::int64_t collectives() const {
    const std::lock_guard lock(mutex_);
    return collectives_;
  }

 private:
  mutable std::mutex mutex_;  // autograd's threads may start and wait as well
  std::vector<Event> events_;
  std::int64_t collectives_ = 0;
};

namespace detail {

using Clock = std::chrono::steady_clock;

/// A collective that ends no earlier than at a given time.
class DelayedWork final : public c10d::Work {
 public:
  DelayedWork(c10::intrusive_ptr<c10d::Work> inner, Clock::time_point end, std::int64_t number,
              std::shared_ptr<CommunicationLog> log)
      : inner_(std::move(inner)), end_(end), number_(number), log_(std::move(log)) {}

  bool isCompleted() override { return inner_->isCompleted() && Clock::now() >= end_; }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }

  bool wait(std::chrono::milliseconds timeout) override {
    log_->waited(number_);
    const bool done = inner_->wait(timeout);
    std::this_thread::sleep_until(end_);
    return done;
  }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  Clock::time_point end_;
  std::int64_t number_;
  std::shared_ptr<CommunicationLog> log_;
};

}  // namespace detail
}  // namespace dovetail::testing
