#pragma once

#include "base/text.hpp"
#include "show/table.hpp"

namespace muonrt::tool::cell {

/// 1.5 MiB in the text.
inline Cell bytes(int64_t value) { return {human_bytes(value), cat(value)}; }

}  // namespace muonrt::tool::cell
