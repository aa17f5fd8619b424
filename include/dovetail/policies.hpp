// SPDX-License-Identifier: Apache-2.0
#pragma once

/// All built-in policies with the halves that move tensors.

#include <dovetail/precision/precision_run.hpp>
#include <dovetail/strategy/ddp_run.hpp>
#include <dovetail/strategy/fsdp_run.hpp>
#include <dovetail/strategy/sharded_run.hpp>
#include <dovetail/strategy/single_device_run.hpp>
