#include "muonrt/plan.h"

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/read_settings.hpp"
#include "api/structs.hpp"
#include "layout/mesh.hpp"
#include "model/simulate.hpp"
#include "plan/machine/named_profiles.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

constexpr int kNoRank = -1;  // the shards and strides of a plan's parameters are not read

muonrt_plan_t* new_plan(std::unique_ptr<Planning> body) {
  auto handle = std::make_unique<muonrt_plan>();
  handle->body = std::move(body);
  return api::release_handle(std::move(handle));
}

muonrt_plan_summary_t summary_of(const Plan& plan, const PlanReport& report) {
  muonrt_plan_summary_t out;
  muonrt_plan_summary_init(&out);
  const std::vector<ParamSpec>& params = plan.problem().params;
  out.world = plan.problem().options.world;
  out.params = std::ssize(params);
  for (const ParamSpec& spec : params) {
    const bool muon = spec.role == Role::kMuon;
    out.muon_params += muon;
    out.elements += spec.layout.numel();
    out.muon_elements += muon ? spec.layout.numel() : 0;
  }
  out.matrices = std::ssize(plan.matrices());
  out.chunks = std::ssize(plan.chunks());
  out.flops = report.flops;
  out.makespan = plan.makespan();
  out.lower_bound = plan.lower_bound();
  out.moved_bytes = report.traffic.moved_total;
  out.hidden_bytes = report.hidden_bytes;
  out.peers = report.return_peers;
  out.largest_rank = static_cast<int32_t>(report.largest_rank);
  return out;
}

muonrt_plan_rank_t rank_of(const Planning& planning, int32_t rank) {
  muonrt_plan_rank_t out;
  muonrt_plan_rank_init(&out);
  const auto r = static_cast<size_t>(rank);
  const PlanReport& report = planning.reports().full;
  const RankTraffic& t = report.traffic.ranks[r];
  out.rank = rank;
  out.matrices = t.owned;
  out.chunks = t.chunks;
  out.cost = planning.plan().load()[r];
  out.messages = t.messages;
  out.sent_bytes = t.sent;
  out.received_bytes = t.received;
  out.param_bytes = t.param_bytes;
  out.grad_bytes = t.grad_bytes;
  out.master_bytes = t.master_bytes;
  out.moment_bytes = t.moment_bytes;
  out.message_bytes = t.memory.message_bytes;
  out.staged_bytes = t.memory.staged_bytes;
  out.scratch_bytes = report.scratch[r];
  out.check_bytes = report.checks[r];
  out.total_bytes = total_bytes(report, r);
  if (const auto& block = planning.reports().block) {
    const MemoryPlan& more = block->traffic.ranks[r].memory;
    out.message_bytes += more.message_bytes;
    out.staged_bytes += more.staged_bytes;
    out.scratch_bytes += block->scratch[r];
    out.total_bytes += more.message_bytes + more.staged_bytes + block->scratch[r];
  }
  return out;
}

muonrt_plan_time_t time_of(const Planning& planning, const MachineProfile& machine) {
  const Simulation step = simulate(planning, machine);
  const RankTimes& rank = step.critical;
  const PlanReport& report = planning.reports().full;
  muonrt_plan_time_t out;
  muonrt_plan_time_init(&out);
  out.rank = rank.rank;
  out.step_seconds = step.seconds;
  out.products_seconds = rank.products;
  out.local_seconds = rank.local;
  out.exchange_seconds = rank.exchange;
  out.exposed_seconds = rank.exposed;
  out.launch_seconds = rank.launch;
  out.sent_bytes = rank.sent_bytes;
  out.received_bytes = rank.received_bytes;
  out.messages = rank.messages;
  out.device_bytes = static_cast<int64_t>(machine.memory_bytes);
  out.simulated_ranks = static_cast<int32_t>(step.ranks.size());
  const auto largest = static_cast<int32_t>(report.largest_rank);
  out.fits = rank_of(planning, largest).total_bytes <= out.device_bytes;
  return out;
}

}  // namespace

extern "C" {

muonrt_status_t muonrt_plan_create(muonrt_plan_t** plan, int32_t world,
                                   const muonrt_optimizer_options_t* options,
                                   const muonrt_group_t* groups, int32_t n_groups,
                                   const muonrt_param_t* params, int64_t n_params) {
  return as_status([&] {
    require_pointer(plan, "muonrt_plan_create", "plan");
    *plan = nullptr;
    MUONRT_REQUIRE(world >= 1 && world <= Mesh::kMaxRanks, Status::kInvalidArgument,
                   "muonrt_plan_create: world is ", world, ", but must be between 1 and ",
                   Mesh::kMaxRanks, "; pass the number of ranks");
    *plan = new_plan(std::make_unique<Planning>(
        api::read_settings(options, groups, n_groups, params, n_params, kNoRank, world), world));
    return Status::kOk;
  });
}

muonrt_status_t muonrt_plan_create_from_optimizer(muonrt_plan_t** plan,
                                                  const muonrt_optimizer_t* optimizer) {
  return as_status([&] {
    require_pointer(plan, "muonrt_plan_create_from_optimizer", "plan");
    *plan = nullptr;
    const Optimizer& o = api::unwrap(optimizer, "muonrt_plan_create_from_optimizer");
    *plan = new_plan(std::make_unique<Planning>(o.settings(), o.comm().size(), true));
    return Status::kOk;
  });
}

void muonrt_plan_destroy(muonrt_plan_t* plan) {
  as_status([&] {
    api::destroy_handle(plan, "muonrt_plan_destroy", "plan");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_plan_get_summary(muonrt_plan_summary_t* summary, const muonrt_plan_t* plan) {
  return as_status([&] {
    const Planning& p = api::unwrap(plan, "muonrt_plan_get_summary");
    require_pointer(summary, "muonrt_plan_get_summary", "summary");
    api::write_struct(summary, summary_of(p.plan(), p.reports().full), "summary");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_plan_get_rank(muonrt_plan_rank_t* info, const muonrt_plan_t* plan,
                                     int32_t rank) {
  return as_status([&] {
    const Planning& p = api::unwrap(plan, "muonrt_plan_get_rank");
    require_pointer(info, "muonrt_plan_get_rank", "info");
    const int world = p.plan().problem().options.world;
    MUONRT_REQUIRE(rank >= 0 && rank < world, Status::kInvalidArgument,
                   "muonrt_plan_get_rank: rank is ", rank, ", but must be between 0 and ",
                   world - 1, "; pass a rank of the plan");
    api::write_struct(info, rank_of(p, rank), "info");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_plan_get_time(muonrt_plan_time_t* time, const muonrt_plan_t* plan,
                                     const char* machine) {
  return as_status([&] {
    const Planning& p = api::unwrap(plan, "muonrt_plan_get_time");
    require_pointer(time, "muonrt_plan_get_time", "time");
    require_pointer(machine, "muonrt_plan_get_time", "machine");
    const MachineProfile profile = find_profile(machine, "muonrt_plan_get_time: machine");
    api::write_struct(time, time_of(p, profile), "time");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_plan_describe(char* buffer, int64_t capacity, int64_t* needed,
                                     const muonrt_plan_t* plan, enum muonrt_format format,
                                     int64_t max_rows) {
  return as_status([&] {
    const Planning& p = api::unwrap(plan, "muonrt_plan_describe");
    const bool json = api::is_json(format, "muonrt_plan_describe");
    MUONRT_REQUIRE(max_rows >= 0, Status::kInvalidArgument, "muonrt_plan_describe: max_rows is ",
                   max_rows, ", but must be at least 0; pass 0 for all rows");
    api::write_text(p.describe(json, max_rows), buffer, capacity, needed);
    return Status::kOk;
  });
}

}  // extern "C"
