#pragma once

namespace muonrt::tool {

/// What the metadata of `muonrt step`'s state files say.
constexpr const char* kStepStateFormat = "muonrt step state 1";

}  // namespace muonrt::tool
