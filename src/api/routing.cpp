#include "muonrt/routing.h"

#include "api/as_status.hpp"
#include "api/structs.hpp"
#include "base/sized_struct.hpp"
#include "optimizer/routing.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

std::vector<std::string> read_keys(const char* const* keys, int32_t count, const char* what) {
  MUONRT_REQUIRE(count >= 0 && (keys || count == 0), Status::kInvalidArgument, "routing: n_", what,
                 " is ", count, " and ", what, " is ", keys ? "set" : "NULL",
                 ", but the number must not be negative, and above 0 it needs a list; set both");
  std::vector<std::string> out;
  for (int32_t i = 0; i < count; ++i) {
    MUONRT_REQUIRE(keys[i] && *keys[i], Status::kInvalidArgument, "routing: ", what, "[", i,
                   "] is ", keys[i] ? "empty" : "NULL", ", which matches no name; set a text");
    out.push_back(keys[i]);
  }
  return out;
}

RoutingRules read_rules(const muonrt_routing_t* routing) {
  RoutingRules out;
  if (routing) {
    muonrt_routing_t defaults;
    muonrt_routing_init(&defaults);
    const auto r = api::read_struct(routing, defaults, "routing");
    out.adamw_keys = read_keys(r.adamw_keys, r.n_adamw_keys, "adamw_keys");
    out.expert_keys = read_keys(r.expert_keys, r.n_expert_keys, "expert_keys");
  }
  return out;
}

}  // namespace

extern "C" {

void muonrt_routing_init_sized(muonrt_routing_t* routing, uint32_t size) {
  muonrt::fill_sized(routing, size, [](muonrt_routing_t&) {});
}

muonrt_status_t muonrt_routing_resolve(enum muonrt_role* role, enum muonrt_view* view,
                                       const muonrt_routing_t* routing, const char* name,
                                       int32_t ndim) {
  return as_status([&] {
    require_pointer(role, "muonrt_routing_resolve", "role");
    require_pointer(view, "muonrt_routing_resolve", "view");
    require_pointer(name, "muonrt_routing_resolve", "name");
    const Route found = route(read_rules(routing), name, ndim);
    *role = static_cast<enum muonrt_role>(found.role);
    *view = static_cast<enum muonrt_view>(found.view);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_routing_explain(char* buffer, int64_t capacity, int64_t* needed,
                                       const muonrt_routing_t* routing, const char* name,
                                       int32_t ndim) {
  return as_status([&] {
    require_pointer(name, "muonrt_routing_explain", "name");
    api::write_text(route(read_rules(routing), name, ndim).reason, buffer, capacity, needed);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_name_normalize(char* buffer, int64_t capacity, int64_t* needed,
                                      const char* name) {
  return as_status([&] {
    require_pointer(name, "muonrt_name_normalize", "name");
    api::write_text(normalize_name(name), buffer, capacity, needed);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_qk_layer_parse(enum muonrt_qk_kind* kind, int64_t* layer, const char* name) {
  return as_status([&] {
    require_pointer(kind, "muonrt_qk_layer_parse", "kind");
    require_pointer(layer, "muonrt_qk_layer_parse", "layer");
    require_pointer(name, "muonrt_qk_layer_parse", "name");
    const QkLayer found = parse_qk_layer(name);
    *kind = static_cast<enum muonrt_qk_kind>(found.kind);
    *layer = found.layer;
    return Status::kOk;
  });
}

}  // extern "C"
