#include "muonrt/base.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "api/as_status.hpp"
#include "backend/cuda_device.hpp"
#include "base/json.hpp"
#include "base/log.hpp"
#include "build_info.hpp"
#include "host/host_device.hpp"

namespace muonrt::api {

namespace {
// The size is fixed, so storing an error message never allocates.
thread_local char last_error[4096];
}  // namespace

void set_last_error(const char* message) noexcept {
  const auto keep = [](const char* text) {
    const size_t length = std::min(std::strlen(text), sizeof last_error - 1);
    std::memmove(last_error, text, length);
    last_error[length] = 0;
  };
  try {
    keep(shorten_names(message).c_str());
  } catch (...) {  // no memory for the shortened message
    keep(message);
  }
}

bool is_json(const enum muonrt_format& format, const char* function) {
  // A C program can pass any number. In C++, reading an enum whose number is out of range is
  // undefined behavior.
  const auto value = std::bit_cast<int32_t>(format);
  MUONRT_REQUIRE(value == MUONRT_FORMAT_TEXT || value == MUONRT_FORMAT_JSON,
                 Status::kInvalidArgument, function, ": format is ", value,
                 ", but must be 0 (text) or 1 (JSON); use one of these");
  return value == MUONRT_FORMAT_JSON;
}

void write_text(const std::string& text, char* buffer, int64_t capacity, int64_t* needed) {
  MUONRT_REQUIRE(capacity >= 0, Status::kInvalidArgument, "capacity is ", capacity,
                 ", but must be 0 or more; pass the size of the buffer in bytes");
  MUONRT_REQUIRE(buffer || capacity == 0, Status::kInvalidArgument,
                 "buffer is NULL, but its capacity is ", capacity, "; pass a buffer or capacity 0");
  if (needed) *needed = static_cast<int64_t>(text.size());
  if (capacity == 0) return;
  const size_t length = std::min(text.size(), static_cast<size_t>(capacity) - 1);
  std::memcpy(buffer, text.data(), length);
  buffer[length] = 0;
}

}  // namespace muonrt::api

using namespace muonrt;

extern "C" {

const char* muonrt_status_get_name(muonrt_status_t status) {
  return status_name(static_cast<Status>(status));
}

const char* muonrt_get_last_error(void) { return api::last_error; }

muonrt_status_t muonrt_set_last_error(muonrt_status_t status, const char* message) {
  return api::as_status([&] {
    api::set_last_error(message ? message : "");
    return static_cast<Status>(status);
  });
}

muonrt_status_t muonrt_set_log(muonrt_log_function_t function, void* state,
                               enum muonrt_log_level level) {
  return api::as_status([&] {
    // A C program can pass any number. In C++, reading an enum whose number is out of range is
    // undefined behavior.
    const auto value = std::bit_cast<int32_t>(level);
    MUONRT_REQUIRE(value >= MUONRT_LOG_OFF && value <= MUONRT_LOG_DEBUG, Status::kInvalidArgument,
                   "muonrt_set_log: level is ", value,
                   ", but must be between 0 (off) and 4 (debug); use one of these");
    LogFunction call;
    if (function) {
      call = [function, state](LogLevel of, const char* message) {
        function(state, static_cast<enum muonrt_log_level>(of), message);
      };
    }
    set_log(std::move(call), static_cast<LogLevel>(value));
    return Status::kOk;
  });
}

int32_t muonrt_get_version(void) {
  return MUONRT_VERSION_MAJOR * 10000 + MUONRT_VERSION_MINOR * 100 + MUONRT_VERSION_PATCH;
}

muonrt_status_t muonrt_get_build_info(char* buffer, int64_t capacity, int64_t* needed) {
  return api::as_status([&] {
    namespace b = build_info;
    const auto host = host::make_host_device({});
    JsonWriter json;
    json.object([&] {
      json.field("version", b::kVersion);
      json.field("abi", MUONRT_ABI);
      json.field("compiler", b::kCompiler);
      json.field("architecture", b::kArchitecture);
      json.field("build_type", b::kBuildType);
      json.field("sanitizer", b::kSanitizer);
      json.field("host", host->describe());
      json.field("host_iteration", host::multiplies_bf16() ? "bf16" : "f32");
      json.field("cuda", cuda_is_built());
      json.field("cuda_devices", cuda_device_count());
      json.field("cuda_versions", describe_cuda());
      json.field("mpi", b::kMpi);
      json.field("onednn", b::kOneDnn);
      std::vector<const char*> transports = {"self", "thread", "callback", "tcp", "folder"};
      if (b::kMpi) transports.push_back("mpi");
      if (cuda_is_built()) transports.insert(transports.end(), {"staged", "nccl"});
      json.field("transports", transports);
    });
    api::write_text(json.take(), buffer, capacity, needed);
    return Status::kOk;
  });
}

}  // extern "C"
