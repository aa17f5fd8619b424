// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dovetail {

/// How many ranks do what together with units.
struct GroupSizes {
  int all = 1;      ///< agree on the units that are visited
  int shard = all;  ///< share one replica of the model, each holding a part
  int reshard = 1;  ///< of a shard group: have a unit in slices between its forward and its backward; 1: no slices
};

}  // namespace dovetail
