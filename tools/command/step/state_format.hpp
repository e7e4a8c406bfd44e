#pragma once

namespace muonrt::tool {

// What the metadata of `muonrt step`'s state files say.
constexpr const char* kStepStateFormat = "muonrt step state 2";
constexpr const char* kStepStateOlder = "muonrt step state 1";  // without checksums

}  // namespace muonrt::tool
