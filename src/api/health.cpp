#include "muonrt/health.h"

#include <algorithm>
#include <limits>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "base/sized_struct.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

int32_t to_c(Replicated kind) {
  switch (kind) {
    case Replicated::kData:
      return MUONRT_STATE_PARAM;
    case Replicated::kMaster:
      return MUONRT_STATE_MASTER;
    case Replicated::kRemainder:
      return MUONRT_STATE_REMAINDER;
    case Replicated::kMomentum:
      return MUONRT_STATE_MOMENTUM;
    case Replicated::kVariance:
      return MUONRT_STATE_VARIANCE;
    case Replicated::kGradient:  // not part of the statistics
      break;
  }
  return MUONRT_STATE_PARAM;
}

muonrt_health_t to_c(const HealthReport& r) {
  muonrt_health_t out;
  muonrt_health_init(&out);
  out.skipped = r.skipped;
  out.step = r.step;
  out.matrices = std::ssize(r.matrices);
  out.replica_param = r.difference.param;
  out.replica_rank = r.difference.rank;
  out.replica_reference = r.difference.reference;
  out.replica_kind = to_c(r.difference.kind);
  return out;
}

muonrt_matrix_health_t to_c(const MatrixHealth& m) {
  muonrt_matrix_health_t out;
  muonrt_matrix_health_init(&out);
  out.updated = m.updated;
  out.param = m.param;
  out.index = m.index;
  out.rows = m.rows;
  out.cols = m.cols;
  out.update_rms = m.update_rms;
  out.weight_rms = m.weight_rms;
  out.sigma_min = m.sigma_min;
  out.sigma_max = m.sigma_max;
  out.deviation = m.deviation;
  out.largest_q = m.largest_q;
  out.nonfinite = m.nonfinite;
  return out;
}

}  // namespace

extern "C" {

void muonrt_health_init_sized(muonrt_health_t* health, uint32_t size) {
  muonrt::fill_sized(health, size, [](muonrt_health_t& out) {
    out.step = -1;
    out.replica_param = -1;
    out.replica_rank = -1;
    out.replica_reference = -1;
    out.replica_kind = MUONRT_STATE_PARAM;
  });
}

void muonrt_matrix_health_init_sized(muonrt_matrix_health_t* matrix, uint32_t size) {
  muonrt::fill_sized(matrix, size, [](muonrt_matrix_health_t& out) {
    out.param = -1;
    for (double* value : {&out.update_rms, &out.weight_rms, &out.sigma_min, &out.sigma_max,
                          &out.deviation, &out.largest_q}) {
      *value = std::numeric_limits<double>::quiet_NaN();
    }
  });
}

muonrt_status_t muonrt_optimizer_get_health(muonrt_health_t* health,
                                            muonrt_matrix_health_t* matrices, int64_t capacity,
                                            const muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    const char* const who = "muonrt_optimizer_get_health";
    const Optimizer& o = api::unwrap(optimizer, who, "optimizer");
    require_pointer(health, who, "health");
    MUONRT_REQUIRE(capacity >= 0, Status::kInvalidArgument, who, ": capacity is ", capacity,
                   ", but must be 0 or more; pass the number of elements in matrices");
    if (capacity > 0) require_pointer(matrices, who, "matrices");
    MUONRT_REQUIRE(
        o.settings().health_every > 0, Status::kInvalidState, who,
        ": no step collects statistics, because health_every of the debug options is 0; create "
        "the optimizer with health_every > 0");
    api::struct_size_of(health, "health", sizeof *health);
    const HealthReport& report = o.health();
    const int64_t count = std::min(capacity, static_cast<int64_t>(report.matrices.size()));
    const uint32_t stride =
        capacity > 0 ? api::struct_size_of(matrices, "matrices", sizeof *matrices) : 0;
    for (int64_t i = 0; i < count; ++i) {
      auto* const at = reinterpret_cast<unsigned char*>(matrices) + i * stride;
      std::memcpy(at, &stride, sizeof stride);  // the caller may have initialized only element 0
      api::write_struct(at, to_c(report.matrices[static_cast<size_t>(i)]), "matrices");
    }
    api::write_struct(health, to_c(report), "health");
    return Status::kOk;
  });
}

}  // extern "C"
