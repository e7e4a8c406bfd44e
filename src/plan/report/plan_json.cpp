#include "base/json.hpp"
#include "plan/report/report.hpp"

namespace muonrt {

namespace {

void write_spread(JsonWriter& json, const char* name, const Spread& spread) {
  json.key(name);
  json.object([&] {
    json.field("max", spread.largest);
    json.field("mean", spread.mean);
  });
}

void write_options(JsonWriter& json, const Plan& plan) {
  const PlanOptions& o = plan.problem().options;
  json.field("world", o.world);
  json.field("transport_dtype", name_of(o.transport_dtype));
  json.field("chunk_bytes", o.chunk_bytes);
  json.field("window", o.window);
  json.field("least_part", o.least_part);
  json.field("replica_mode", plan.every_rank()     ? "every_rank"
                             : plan.each_replica() ? "each"
                                                   : "once");
  json.field("max_peers", max_peers(o));
  json.field("machine", o.machine.name);
  if (o.replica_mode == ReplicaMode::kAuto) {
    json.field("once_seconds", plan.once_seconds());
    json.field("each_seconds", plan.each_seconds());
  }
  json.field("commit", o.commit == CommitMode::kAtomic ? "atomic" : "eager");
}

void write_total(JsonWriter& json, const Plan& plan, const PlanReport& report) {
  json.field("params", plan.problem().params.size());
  json.field("matrices", plan.matrices().size());
  json.field("chunks", plan.chunks().size());
  json.field("flops", report.flops);
  json.field("flops_full", report.flops_full);
  json.field("makespan_cost", plan.makespan());
  json.field("lower_bound_cost", plan.lower_bound());
  json.field("balance", report.balance);
  json.field("round_robin_balance", report.round_robin);
  json.field("moved_bytes", report.traffic.moved_total);
  json.field("hidden_bytes", report.hidden_bytes);
  json.field("return_peers", report.return_peers);
  json.field("relayed_chunks", report.relayed_chunks);
  write_spread(json, "sent_bytes", report.sent);
  write_spread(json, "received_bytes", report.received);
  write_spread(json, "param_bytes", report.param_bytes);
  write_spread(json, "grad_bytes", report.grad_bytes);
  write_spread(json, "master_bytes", report.master_bytes);
  write_spread(json, "moment_bytes", report.moment_bytes);
  write_spread(json, "message_bytes", report.message_bytes);
  write_spread(json, "staged_bytes", report.staged_bytes);
  if (!report.scratch.empty()) write_spread(json, "scratch_bytes", report.scratch_bytes);
  if (!report.checks.empty()) write_spread(json, "check_bytes", report.check_bytes);
  write_spread(json, "state_bytes", report.state_bytes);
  write_spread(json, "total_bytes", report.total_bytes);
  json.field("largest_rank", report.largest_rank);
}

void write_param(JsonWriter& json, const Plan& plan, const PlanReport& report, size_t p) {
  const ParamSpec& spec = plan.problem().params[p];
  const ParamReport& row = report.params[p];
  json.field("name", spec.name);
  json.field("shape", spec.layout.shape());
  json.field("layout", spec.layout.describe());
  if (spec.grad_layout) json.field("grad_layout", spec.grad_layout->describe());
  json.field("dtype", name_of(spec.dtype));
  json.field("grad_dtype", name_of(spec.grad_dtype));
  json.field("group", spec.group);
  json.field("form", form_name(plan, p, row));
  json.field("update_scale", spec.update_scale);
  if (spec.transposed) json.field("transposed", true);
  json.field("experts", spec.stack ? spec.layout.shape()[0] : int64_t{0});
  json.field("parts", spec.parts.size());
  json.field("matrices", row.matrices);
  json.field("owners", row.owners);
  json.field("chunks", row.chunks);
  json.field("state", state_name(spec));
  json.field("partial_grads", grad_layout(spec).partial_count());
  json.field("bytes", row.bytes);
  json.field("moved_bytes", report.traffic.moved[p]);
  json.field("flops", row.flops);
}

void write_chunk(JsonWriter& json, const Plan& plan, const PlanReport& report, size_t s) {
  json.field("chunk", s);
  json.field("content", content_name(plan.chunks()[s]));
  json.field("matrices", plan.chunks()[s].matrices.size());
  json.field("relay", plan.chunks()[s].relay);
  json.field("owners", report.chunks[s].owners);
  json.field("bytes", plan.chunks()[s].bytes);
  json.field("gathered_bytes", report.traffic.chunks[s].gather);
  json.field("returned_bytes", report.traffic.chunks[s].back);
  json.field("cost", report.chunks[s].cost);
  json.field("busiest_owner_cost", report.chunks[s].largest_cost);
}

void write_rank(JsonWriter& json, const Plan& plan, const PlanReport& report, size_t r) {
  const RankTraffic& row = report.traffic.ranks[r];
  json.field("rank", r);
  json.field("matrices", row.owned);
  json.field("cost", plan.load()[r]);
  json.field("chunks", row.chunks);
  json.field("return_peers", row.peers);
  json.field("sent_bytes", row.sent);
  json.field("received_bytes", row.received);
  json.field("param_bytes", row.param_bytes);
  json.field("grad_bytes", row.grad_bytes);
  json.field("master_bytes", row.master_bytes);
  json.field("moment_bytes", row.moment_bytes);
  json.field("message_bytes", row.memory.message_bytes);
  json.field("staged_bytes", row.memory.staged_bytes);
  if (!report.scratch.empty()) json.field("scratch_bytes", report.scratch[r]);
  if (!report.checks.empty()) json.field("check_bytes", report.checks[r]);
  json.field("state_bytes", row.memory.state_bytes);
  json.field("total_bytes", total_bytes(report, r));
}

}  // namespace

void Plan::write(JsonWriter& json, const PlanReport& report) const {
  const auto rows = [&](const char* name, size_t count, const auto& write) {
    json.key(name);
    json.list([&] {
      for (size_t i = 0; i < count; ++i) json.object([&] { write(json, *this, report, i); });
    });
  };
  json.field("hash", hash_text(*this));
  json.key("options");
  json.object([&] { write_options(json, *this); });
  json.key("total");
  json.object([&] { write_total(json, *this, report); });
  rows("params", report.params.size(), write_param);
  rows("chunks", report.chunks.size(), write_chunk);
  rows("ranks", report.traffic.ranks.size(), write_rank);
  json.field("warnings", report.warnings);
}

std::string Plan::json(std::span<const int64_t> scratch, std::span<const int64_t> checks) const {
  JsonWriter json;
  json.object([&] { write(json, report_on(*this, scratch, checks)); });
  return json.take();
}

}  // namespace muonrt
