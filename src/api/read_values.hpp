#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "api/structs.hpp"
#include "base/dtype.hpp"
#include "muonrt/base.h"

// These functions read single values and arrays from C structs. They throw INVALID_ARGUMENT with
// `who` and the field in the message.

namespace muonrt::api {

template <class E>
E read_enum(const std::string& who, const char* field, int32_t value,
            const std::vector<int32_t>& known) {
  for (const int32_t k : known) {
    if (value == k) return static_cast<E>(value);
  }
  throw Error(kInvalidArg, cat(who, ": ", field, " is ", value, ", but must be one of ", known,
                               "; set it to one of these"));
}

inline DType read_dtype(const std::string& who, const char* field, int32_t value) {
  return read_enum<DType>(who, field, value,
                          {MUONRT_DTYPE_F32, MUONRT_DTYPE_BF16, MUONRT_DTYPE_F16});
}

inline bool read_bool(const std::string& who, const char* field, int32_t value) {
  return read_enum<int32_t>(who, field, value, {0, 1}) != 0;
}

/// Returns element `i` of an array whose elements are `stride` bytes apart. `stride` is the
/// struct_size of the first element.
template <class T>
const T* element(const T* array, int64_t i, uint32_t stride, const std::string& who) {
  const auto* at = reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) +
                                              i * static_cast<int64_t>(stride));
  uint32_t size = 0;
  std::memcpy(&size, at, sizeof size);
  MUONRT_REQUIRE(size == stride, kInvalidArg, who, ": struct_size is ", size,
                 ", but that of element 0 is ", stride,
                 "; initialize every element with its _init macro");
  return at;
}

/// Reads a name, which must not be NULL, be empty or contain control characters.
inline std::string read_name(const char* name, const std::string& who) {
  MUONRT_REQUIRE(name && *name, kInvalidArg, who, ": name is ", name ? "empty" : "NULL",
                 ", but messages and the plan need one; set a name");
  for (const char* c = name; *c; ++c) {
    MUONRT_REQUIRE(!is_control(*c), kInvalidArg, who, ": name contains the control character ",
                   static_cast<int>(*c), "; remove it");
  }
  return name;
}

}  // namespace muonrt::api
