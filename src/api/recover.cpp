#include "muonrt/recover.h"

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "base/sized_struct.hpp"

using namespace muonrt;

extern "C" {

void muonrt_recovery_init_sized(muonrt_recovery_t* recovery, uint32_t size) {
  muonrt::fill_sized(recovery, size);
}

muonrt_status_t muonrt_optimizer_recover(muonrt_optimizer_t* optimizer, muonrt_comm_t* survivors,
                                         muonrt_recovery_t* recovery) {
  return api::as_status([&] {
    const char* const who = "muonrt_optimizer_recover";
    api::require_pointer(optimizer, who, "optimizer");
    api::require_pointer(survivors, who, "survivors");
    if (recovery) api::struct_size_of(recovery, "recovery", sizeof *recovery);
    const Recovery done = optimizer->optimizer->recover(survivors->host);
    muonrt_recovery_t out;
    muonrt_recovery_init(&out);
    out.outcome = static_cast<int32_t>(done.outcome);
    out.step = done.steps;
    if (recovery) api::write_struct(recovery, out, "recovery");
    return Status::kOk;
  });
}

}  // extern "C"
