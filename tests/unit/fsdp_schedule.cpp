// SPDX-License-Identifier: Apache-2.0
// The order of backward that follows from an order of forward. Numbers only.
#include <dovetail/shard/unit_schedule.hpp>

#include <string>

#include <catch2/catch.hpp>

namespace {

using dovetail::BackwardStep;
using dovetail::UnitSchedule;
using dovetail::UnitVisit;

/// "+2" gathers unit 2, "-2" is through with a visit, "=2" reduces.
std::string backward(UnitSchedule& schedule) {
  std::string text;
  for (const BackwardStep& step : schedule.backward()) {
    text += step.kind == BackwardStep::Kind::gather ? '+' : step.reduces ? '=' : '-';
    text += std::to_string(schedule.visits()[step.visit].unit);
  }
  return text;
}

UnitSchedule of(std::initializer_list<UnitVisit> visits) {
  UnitSchedule schedule;
  for (const UnitVisit& visit : visits) schedule.append(visit);
  return schedule;
}

}  // namespace

TEST_CASE("backward is forward reversed", "[fsdp][schedule]") {
  UnitSchedule none;
  CHECK(backward(none).empty());
  auto chain = of({{0, 0}, {1, 0}, {2, 0}});
  CHECK(backward(chain) == "+2=2+1=1+0=0");
  CHECK(chain.gather_at(0) == 4);
  CHECK(chain.finish_at(0) == 5);
}

TEST_CASE("a unit is gathered before those inside it and reduced after them", "[fsdp][schedule]") {
  auto nested = of({{0, 0}, {1, 1}, {2, 2}, {3, 1}, {4, 0}});
  CHECK(backward(nested) == "+4=4+0+3=3+1+2=2=1=0");
}

TEST_CASE("a unit is reduced at its first visit, which backward reaches last", "[fsdp][schedule]") {
  auto twice = of({{0, 0}, {1, 0}, {0, 0}});
  CHECK(backward(twice) == "+0-0+1=1+0=0");
  auto inside = of({{0, 0}, {1, 1}, {2, 1}, {1, 1}, {2, 1}});
  CHECK(backward(inside) == "+0+2-2+1-1+2=2+1=1=0");
}

TEST_CASE("a list that begins inside a unit is a list all the same", "[fsdp][schedule]") {
  auto cut = of({{9, 0}, {1, 1}, {2, 0}});
  cut.forget_before(1);
  CHECK(backward(cut) == "+2=2+1=1");
  CHECK(cut.next_of(2, 0) == 1);
  CHECK(cut.next_of(1, 1) == UnitSchedule::none);
}
