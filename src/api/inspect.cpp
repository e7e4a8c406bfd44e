#include "muonrt/inspect.h"

#include <algorithm>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "pipeline/trace.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

/// Checks that no array is NULL unless `capacity` is 0. Errors: INVALID_ARGUMENT.
void require_arrays(const int32_t* layers, const int32_t* heads, int64_t capacity,
                    const char* function) {
  MUONRT_REQUIRE(
      capacity >= 0 && (capacity == 0 || (layers && heads)), Status::kInvalidArgument, function,
      ": capacity is ", capacity,
      ", but must not be negative, and if it is above 0 neither array may be NULL; pass both "
      "arrays, or capacity 0");
}

}  // namespace

extern "C" {

muonrt_status_t muonrt_optimizer_describe_plan(char* buffer, int64_t capacity, int64_t* needed,
                                               const muonrt_optimizer_t* optimizer,
                                               enum muonrt_format format) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_describe_plan");
    const std::string text = o.describe(api::is_json(format, "muonrt_optimizer_describe_plan"));
    api::write_text(text, buffer, capacity, needed);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_trace(char* buffer, int64_t capacity, int64_t* needed,
                                           const muonrt_optimizer_t* optimizer,
                                           enum muonrt_format format) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_get_trace");
    const bool json = api::is_json(format, "muonrt_optimizer_get_trace");
    o.require_idle("muonrt_optimizer_get_trace");
    MUONRT_REQUIRE(
        !json || o.settings().trace, Status::kInvalidState,
        "muonrt_optimizer_get_trace: the times were not recorded, because trace of the debug "
        "options is 0; create the optimizer with trace = 1");
    const Pipeline& pipeline = o.pipeline();
    const std::string text =
        json ? chrome_trace(pipeline, o.rank(), o.steps(), pipeline.clock_offset())
             : to_text(pipeline.order());
    api::write_text(text, buffer, capacity, needed);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_counters(muonrt_counters_t* counters,
                                              const muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_get_counters");
    require_pointer(counters, "muonrt_optimizer_get_counters", "counters");
    muonrt_counters_t out;
    muonrt_counters_init(&out);
    out.chunks_resident_peak = o.pipeline().resident_peak();
    out.allocations = o.device().allocations();
    out.allocated_bytes = o.device().allocated_bytes();
    out.objects = o.device().objects();
    out.exchanges = o.comm().exchanges();
    out.bytes_sent = o.comm().bytes_sent();
    out.orthogonalized = o.orthogonalized();
    out.saved_bytes = optimizer->saved.all;
    out.saved_param_bytes = optimizer->saved.params;
    out.threads = o.settings().device == DeviceKind::kHost ? o.settings().threads : 0;
    api::write_struct(counters, out, "counters");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_memory(muonrt_memory_t* memory,
                                            const muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_get_memory");
    require_pointer(memory, "muonrt_optimizer_get_memory", "memory");
    const PlannedMemory planned = o.planned_memory();
    muonrt_memory_t out;
    muonrt_memory_init(&out);
    out.message_bytes = planned.full.message_bytes;
    out.staged_bytes = planned.full.staged_bytes;
    out.scratch_bytes = planned.scratch;
    out.block_message_bytes = planned.block.message_bytes;
    out.block_staged_bytes = planned.block.staged_bytes;
    out.block_scratch_bytes = planned.block_scratch;
    out.check_bytes = o.check_bytes();
    out.state_bytes = planned.full.state_bytes;
    out.allocated_bytes = o.device().allocated_bytes();
    out.save_bytes = optimizer->saving ? optimizer->saving->reserved_bytes() : 0;
    api::write_struct(memory, out, "memory");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_qk_layers(int32_t* layers, int32_t* heads, int64_t capacity,
                                               int64_t* n_layers,
                                               const muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const char* const function = "muonrt_optimizer_get_qk_layers";
    const Optimizer& o = api::unwrap(optimizer, function);
    require_pointer(n_layers, function, "n_layers");
    require_arrays(layers, heads, capacity, function);
    const std::vector<QkLogits> found = o.qk_layers();
    *n_layers = std::ssize(found);
    for (int64_t i = 0; i < std::min(capacity, *n_layers); ++i) {
      layers[i] = found[static_cast<size_t>(i)].layer;
      heads[i] = found[static_cast<size_t>(i)].heads;
    }
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_get_clipped_heads(int32_t* layers, int32_t* heads,
                                                   int64_t capacity, int64_t* n_heads,
                                                   const muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const Optimizer& o = api::unwrap(optimizer, "muonrt_optimizer_get_clipped_heads");
    require_pointer(n_heads, "muonrt_optimizer_get_clipped_heads", "n_heads");
    require_arrays(layers, heads, capacity, "muonrt_optimizer_get_clipped_heads");
    const auto& found = o.clipped_heads();
    *n_heads = static_cast<int64_t>(found.size());
    for (int64_t i = 0; i < std::min(capacity, *n_heads); ++i) {
      layers[i] = found[static_cast<size_t>(i)].first;
      heads[i] = found[static_cast<size_t>(i)].second;
    }
    return Status::kOk;
  });
}

}  // extern "C"
