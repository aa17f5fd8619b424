// SPDX-License-Identifier: Apache-2.0
// The tests are written for Catch2 2. On the include path where Catch2 3 is installed.
#pragma once

#include <catch2/catch_all.hpp>

using Catch::Approx;
namespace Catch {
using Matchers::Contains;
}

#ifdef CATCH_CONFIG_MAIN
int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
#endif
