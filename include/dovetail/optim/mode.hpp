// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dovetail {

/// Which way a monitored metric gets better.
enum class Mode { min, max };

}  // namespace dovetail
