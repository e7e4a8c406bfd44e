#include "muonrt/recover.h"

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "base/sized_struct.hpp"
#include "optimizer/agreement.hpp"
#include "state/copy/copy_state.hpp"

using namespace muonrt;

extern "C" {

void muonrt_recovery_init_sized(muonrt_recovery_t* recovery, uint32_t size) {
  muonrt::fill_sized(recovery, size);
}

muonrt_status_t muonrt_optimizer_recover(muonrt_optimizer_t* optimizer, muonrt_comm_t* survivors,
                                         muonrt_recovery_t* recovery) {
  return api::as_status([&] {
    const char* const who = "muonrt_optimizer_recover";
    Optimizer& o = api::unwrap(optimizer, who, "optimizer");
    const api::CommCall call(survivors, who, "survivors");
    Comm& left = call.body().host;
    muonrt_recovery_t out;
    muonrt_recovery_init(&out);
    if (recovery) out.survivor_policy = api::read_struct(recovery, out, "recovery").survivor_policy;
    MUONRT_REQUIRE(out.survivor_policy == MUONRT_SURVIVORS_MAJORITY ||
                       out.survivor_policy == MUONRT_SURVIVORS_ANY,
                   Status::kInvalidArgument, who, ": survivor_policy is ", out.survivor_policy,
                   ", but must be 0 (majority) or 1 (any); use one of these");
    const Recovery done = o.recover(left, static_cast<SurvivorPolicy>(out.survivor_policy));
    out.outcome = static_cast<int32_t>(done.outcome);
    out.step = done.steps;
    if (recovery) api::write_struct(recovery, out, "recovery");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_optimizer_copy_state(muonrt_optimizer_t* to, muonrt_optimizer_t* from) {
  return api::as_status([&] {
    const char* const who = "muonrt_optimizer_copy_state";
    Optimizer& target = api::unwrap(to, who, "to");
    Optimizer* source = nullptr;
    target.settle();
    target.require_usable();
    run_collectively(target.comm(), [&] {
      if (from) source = &api::unwrap(from, who, "from");
      if (source) source->require_idle(who);
      MUONRT_REQUIRE(source != &target, kInvalidArg, who,
                     ": from is the same optimizer as to; pass the optimizer that has failed");
      MUONRT_REQUIRE(!to->saving || !to->saving->in_progress(), Status::kInvalidState, who,
                     ": a save of to is in progress; call muonrt_optimizer_save_wait() first");
    });
    copy_state(target, source);
    return Status::kOk;
  });
}

}  // extern "C"
