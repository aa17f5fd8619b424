// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include <dovetail/comm/side_stream.hpp>

#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Lines = std::vector<std::string>;
Lines log_lines;

Lines taken() {
  return std::exchange(log_lines, {});
}

/// A device without anything on it: it logs what is asked of its streams and events.
struct LoggingDevice final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kind = c10::DeviceType::PrivateUse1;
  static inline c10::StreamId current = 0;
  static inline std::intptr_t events = 0;

  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, c10::Device(kind, 0), id); }
  static void log(const std::string& what) { log_lines.push_back(what); }
  static std::string name(void* event) { return std::to_string(reinterpret_cast<std::intptr_t>(event)); }

  c10::DeviceType type() const override { return kind; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {kind, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(current); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool high) const override { return stream(high ? 9 : 5); }
  c10::Stream exchangeStream(c10::Stream to) const override { return stream(std::exchange(current, to.id())); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = reinterpret_cast<void*>(++events);
    log("event " + name(*event) + " on stream " + std::to_string(stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    log("stream " + std::to_string(stream.id()) + " waits for event " + name(event));
  }
};

struct Registered {
  static const LoggingDevice* device() {
    static const LoggingDevice one;
    static const c10::impl::DeviceGuardImplRegistrar registrar(LoggingDevice::kind, &one);
    return &one;
  }
  Registered() {
    (void)device();
    LoggingDevice::current = 0;
    LoggingDevice::events = 0;
    (void)taken();
  }
};

const auto body = [] { LoggingDevice::log("body on stream " + std::to_string(LoggingDevice::current)); };

}  // namespace

TEST_CASE("C-12 C-28 collectives run on one stream of their own, between what the current stream does before and after",
          "[comm]") {
  const Registered device;
  dovetail::detail::SideStream side({LoggingDevice::kind, 0});
  CHECK(side.stream().id() == 9);  // of high priority

  auto first = side.run(body);
  CHECK(taken() ==
        Lines{"event 1 on stream 0", "stream 9 waits for event 1", "body on stream 9", "event 2 on stream 9"});
  CHECK(LoggingDevice::current == 0);
  auto second = side.run(body);
  CHECK(taken() ==
        Lines{"event 1 on stream 0", "stream 9 waits for event 1", "body on stream 9", "event 3 on stream 9"});

  second->wait();
  CHECK(taken() == Lines{"stream 0 waits for event 3"});
  second->wait();  // once is enough
  CHECK(taken().empty());
  LoggingDevice::current = 4;  // waited for by who uses it
  first->wait();
  CHECK(taken() == Lines{"stream 4 waits for event 2"});
}

TEST_CASE("work on a side stream holds its tensors until a stream waits for it", "[comm]") {
  const Registered device;
  dovetail::detail::SideStream side({LoggingDevice::kind, 0});
  const torch::Tensor tensor = torch::ones({3});
  const auto holders = [&] { return tensor.use_count(); };
  REQUIRE(holders() == 1);
  auto work = side.run(body, tensor, tensor);
  CHECK(holders() == 3);
  work->wait();
  CHECK(holders() == 1);

  work = side.run(body, tensor);
  (void)taken();
  work.reset();  // dropped: the current stream waits before the memory may be used again
  CHECK(taken() == Lines{"stream 0 waits for event 3"});
  CHECK(holders() == 1);
}

TEST_CASE("an exception on a side stream leaves the streams in order", "[comm]") {
  const Registered device;
  dovetail::detail::SideStream side({LoggingDevice::kind, 0});
  CHECK_THROWS_AS(side.run([] { throw std::runtime_error("no"); }), std::runtime_error);
  CHECK(LoggingDevice::current == 0);
  CHECK(taken() == Lines{"event 1 on stream 0", "stream 9 waits for event 1", "event 2 on stream 9",
                         "stream 0 waits for event 2"});
}
