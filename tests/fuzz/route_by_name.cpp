// Defines muonrt_routing_resolve and muonrt_routing_explain for a target that does not link the
// library.
#include <cstring>

#include "base/error.hpp"
#include "muonrt/routing.h"
#include "optimizer/routing.hpp"

muonrt_status_t muonrt_routing_resolve(enum muonrt_role* role, enum muonrt_view* view,
                                       const muonrt_routing_t*, const char* name, int32_t ndim) {
  try {
    const muonrt::Route found = muonrt::route({}, name, ndim);
    *role = static_cast<enum muonrt_role>(found.role);
    *view = static_cast<enum muonrt_view>(found.view);
    return MUONRT_OK;
  } catch (const muonrt::Error&) {
    return MUONRT_ERROR_INVALID_ARGUMENT;
  }
}

muonrt_status_t muonrt_routing_explain(char* buffer, int64_t capacity, int64_t*,
                                       const muonrt_routing_t*, const char* name, int32_t ndim) {
  std::strncpy(buffer, muonrt::route({}, name, ndim).reason.c_str(), capacity - 1);
  buffer[capacity - 1] = 0;
  return MUONRT_OK;
}
