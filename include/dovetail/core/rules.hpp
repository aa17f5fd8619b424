// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dovetail/core/fit_rules.hpp>
#include <dovetail/core/pair_rules.hpp>
#include <dovetail/core/policy_rules.hpp>
#include <dovetail/core/start_rules.hpp>

namespace dovetail {

/// Every rule about policies, in the order of their numbers; those about Task, Callback and Logger are in
/// hook_rules.hpp.
inline constexpr RuleRow rule_rows[]{
    rules::E001::row, rules::E002::row, rules::E003::row, rules::E004::row, rules::E005::row, rules::E006::row,
    rules::E007::row, rules::E008::row, rules::E009::row, rules::E010::row, rules::E011::row, rules::E012::row,
};

}  // namespace dovetail
