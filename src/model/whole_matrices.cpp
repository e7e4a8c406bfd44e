// The strategies of strategies.hpp in which ranks receive whole matrices without the planner's
// gather. The pipeline cannot run them.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "model/direct_step.hpp"
#include "model/resolve.hpp"
#include "model/strategies.hpp"
#include "optimizer/problem.hpp"
#include "plan/batch.hpp"

namespace muonrt {

namespace {

int64_t elements(const Matrix& m) { return m.rows * m.cols; }

/// The bytes of one element of a parameter.
struct ElementBytes {
  int64_t param, grad, momentum, master;
  int64_t direction;  // read and written to form the direction, except the direction itself
  int64_t weight;     // read and written to update the weight

  explicit ElementBytes(const ParamSpec& spec)
      : param(size_of(spec.dtype)),
        grad(size_of(spec.grad_dtype)),
        momentum(moment_bytes(spec)),
        master(spec.weight_bytes > 0 ? spec.weight_bytes : (spec.master ? 4 : 0)),
        direction(grad + 2 * momentum),
        weight(master == 0   ? 2 * param
               : master == 4 ? param + 8
                             : 2 * param + 4) {}
  int64_t stored() const { return param + grad + momentum + master; }
};

/// The data that all of these strategies need.
class Base {
 public:
  Base(const Planning& planning, const MachineProfile& machine)
      : plan(planning.plan()),
        report(planning.reports().full),
        rules(matrix_rules(planning.settings())),
        profile(machine),
        methods(make_newton_schulz(planning.settings())),
        transport(size_of(plan.problem().options.transport_dtype)),
        window(plan.problem().options.window) {
    for (const ParamSpec& spec : plan.problem().params) bytes.emplace_back(spec);
  }

  const ParamSpec& spec(const Matrix& m) const {
    return plan.problem().params[static_cast<size_t>(m.param)];
  }
  const ElementBytes& of(const Matrix& m) const { return bytes[static_cast<size_t>(m.param)]; }
  int64_t iterate_bytes(const Matrix& m) const {
    return size_of(methods[static_cast<size_t>(spec(m).group)].iteration_of(m.method.form));
  }
  int32_t node_of(int32_t rank) const { return rank / static_cast<int32_t>(profile.node_ranks); }

  /// AdamW's local elements: the bytes that a step reads and writes, and the bytes that are stored.
  struct Local {
    int64_t moved = 0, stored = 0;
  };
  Local adamw(int32_t rank) const {
    Local out;
    for (size_t p = 0; p < bytes.size(); ++p) {
      const ParamSpec& s = plan.problem().params[p];
      if (s.role != Role::kAdamW) continue;
      const int64_t local = s.layout.local_numel(rank);
      out.moved += local * (bytes[p].direction + bytes[p].weight);
      out.stored += local * bytes[p].stored();
    }
    return out;
  }

  /// Returns the bytes of a rank's local weights of Muon parameters.
  int64_t muon_params(int32_t rank) const {
    int64_t out = 0;
    for (size_t p = 0; p < bytes.size(); ++p) {
      const ParamSpec& s = plan.problem().params[p];
      if (s.role == Role::kMuon) out += s.layout.local_numel(rank) * bytes[p].param;
    }
    return out;
  }

  const Plan& plan;
  const PlanReport& report;
  const MatrixRules& rules;
  const MachineProfile& profile;
  std::vector<NewtonSchulz> methods;
  int64_t transport;
  int window;
  std::vector<ElementBytes> bytes;  // one for each parameter
};

/// The bytes that a rank receives in collectives inside its node and between nodes.
struct CollectiveBytes {
  double node = 0, network = 0, messages = 0;

  double seconds(const MachineProfile& p) const {
    if (messages == 0) return 0;
    return p.exchange_seconds + messages * p.message_seconds +
           std::max(node / p.node_bytes, network / p.network_bytes);
  }
  /// Adds an all-gather of `bytes` bytes in total among `ranks` ranks, of which `local` are in this
  /// node. Each byte is sent to a node once; the ranks of the node receive equal shares and
  /// exchange them.
  void add_all_gather(double bytes, double ranks, double local) {
    if (ranks < 2) return;
    const double from_other_nodes = bytes * (1 - local / ranks) / local;
    network += from_other_nodes;
    node += bytes * (1 - 1 / ranks) - from_other_nodes;
    messages = std::max(messages, std::ceil(std::log2(ranks)));
  }
  double bytes() const { return node + network; }
};

StrategyStep step_of(const Base& base, const std::vector<RankRecording>& recordings) {
  std::vector<const RankRecording*> pointers;
  for (const RankRecording& r : recordings) pointers.push_back(&r);
  StrategyStep out;
  for (const RankTimes& r : resolve(pointers, base.profile, base.plan.problem().options.world,
                                    exchange_by_rank(base.profile))) {
    const bool first = out.seconds == 0;
    out.seconds = std::max(out.seconds, r.seconds);
    out.sent_bytes = std::max(out.sent_bytes, r.sent_bytes);
    if (first || r.products + r.local > out.critical.products + out.critical.local)
      out.critical = r;
  }
  return out;
}

/// Returns the rank that holds the matrices with the largest total cost.
int32_t busiest_holder(const Plan& plan) {
  std::map<const HolderGroup*, double> costs;
  for (const Matrix& m : plan.matrices()) costs[&plan.holders().group(m.param, m.index)] += m.cost;
  std::vector<double> load(static_cast<size_t>(plan.problem().options.world), 0);
  for (const auto& [group, cost] : costs)
    for (const Holder& h : group->members) load[static_cast<size_t>(h.rank)] += cost;
  return static_cast<int32_t>(std::max_element(load.begin(), load.end()) - load.begin());
}

/// Returns the number of ranks in the shard group of `holder` that are in its node.
double ranks_in_node(const Base& base, const HolderGroup& group, const Holder& holder) {
  double out = 0;
  for (int64_t s = 0; s < group.shards; ++s)
    out += base.node_of(group.rank_of(holder.replica, holder.partial_index, s)) ==
           base.node_of(holder.rank);
  return out;
}

/// Returns the number of ranks among which tensor parallelism divides a matrix. Each of them has
/// computed only a part of the gradient, so a reduction does not produce the whole gradient.
int64_t tensor_parallel(const ParamSpec& spec) {
  int64_t out = 1;
  for (const int d : spec.layout.shard_dims()) {
    const std::string& name = spec.layout.mesh().names()[static_cast<size_t>(d)];
    if (name == "tp" || name == "etp") out *= spec.layout.mesh().shape()[static_cast<size_t>(d)];
  }
  return out;
}

std::vector<PeerBytes> to_others(const std::vector<Region>& regions, int32_t rank) {
  std::vector<PeerBytes> out;
  for (const Region& r : regions)
    if (r.peer != rank) out.push_back({r.peer, r.bytes});
  return out;
}

/// Returns the matrices that a rank owns in one chunk, in the form that whole_owners() needs.
DirectChunk owned_chunk(const Base& base, const RankChunk& from, int32_t rank, bool permanent,
                        int64_t& message_bytes, double& gathered) {
  DirectChunk out;
  CollectiveBytes tp;
  for (const OwnedMatrix& owned : from.owned) {
    const Matrix& m = base.plan.matrices()[static_cast<size_t>(owned.matrix)];
    const ElementBytes& b = base.of(m);
    out.matrices.push_back(owned.matrix);
    out.pack_bytes += elements(m) * (b.direction + base.transport);
    out.result_bytes += elements(m) * (base.iterate_bytes(m) + b.weight);
    const auto parts = static_cast<double>(tensor_parallel(base.spec(m)));
    tp.add_all_gather(static_cast<double>(elements(m) * base.transport), parts, parts);
  }
  out.gather_seconds = tp.seconds(base.profile);
  gathered += tp.bytes();
  if (permanent) {
    out.return_seconds = out.gather_seconds;
    gathered += tp.bytes();
    return out;
  }
  out.give_back = {to_others(from.return_sends, rank), to_others(from.return_receives, rank),
                   3 * int64_t{from.index} + 1};
  out.relay = {to_others(from.relay_sends, rank), to_others(from.relay_receives, rank),
               3 * int64_t{from.index} + 2};
  int64_t received = 0, sent = 0;
  for (const PeerBytes& r : out.give_back.receives) received += r.bytes;
  for (const PeerBytes& r : out.relay.receives) received += r.bytes;
  std::set<int64_t> written;  // replicas share a region, which is counted once
  for (const Region& r : from.return_sends)
    if (r.peer != rank && written.insert(r.offset).second) sent += r.bytes;
  out.result_bytes += sent;
  out.commit_bytes = 2 * received;  // the received weights are copied to the rank's weights
  message_bytes = std::max(message_bytes, received + sent);
  return out;
}

}  // namespace

StrategyStep gather_everywhere(const Planning& once, const MachineProfile& profile) {
  const Base base(once, profile);
  const Plan& plan = base.plan;
  const int32_t rank = busiest_holder(plan);
  BlockTable blocks(plan.problem().params, plan.holders());
  std::vector<int32_t> held;
  for (size_t id = 0; id < plan.matrices().size(); ++id) {
    const Matrix& m = plan.matrices()[id];
    if (plan.holders().group(m.param, m.index).find(rank)) held.push_back(static_cast<int32_t>(id));
  }
  const auto held_elements = [&](const HolderGroup& group, const Matrix& m, bool gradient) {
    int64_t out = 0;
    if (const Holder* const holder = group.find(rank))
      for (const Block& b : gradient ? blocks.grad_blocks(m.param, m.index, *holder)
                                     : blocks.blocks(m.param, m.index, *holder))
        out += b.rows * b.cols;
    return out;
  };
  std::map<const HolderGroup*, double> in_node;
  std::vector<DirectChunk> chunks;
  std::vector<CollectiveBytes> gathers;
  int64_t bytes = 0, largest = 0;
  for (const int32_t id : in_batches(plan, held)) {
    const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
    const int64_t whole = elements(m) * base.transport;
    if (chunks.empty() || bytes + whole > plan.problem().options.chunk_bytes) {
      chunks.emplace_back();
      gathers.emplace_back();
      bytes = 0;
    }
    largest = std::max(largest, bytes += whole);
    DirectChunk& c = chunks.back();
    const ElementBytes& b = base.of(m);
    c.matrices.push_back(id);
    c.unpack_bytes += 2 * whole;
    c.result_bytes += held_elements(plan.holders().group(m.param, m.index), m, false) *
                      (base.iterate_bytes(m) + b.weight);
    const HolderGroup& group = plan.holders().grad_group(m.param, m.index);
    c.pack_bytes += held_elements(group, m, true) * (b.direction + base.transport);
    const Holder* const holder = group.find(rank);
    double& local = in_node[&group];
    if (holder && local == 0) local = ranks_in_node(base, group, *holder);
    gathers.back().add_all_gather(static_cast<double>(whole), group.shards, std::max(1.0, local));
  }
  double sent = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    chunks[i].gather_seconds = gathers[i].seconds(profile);
    sent += gathers[i].bytes();
  }
  const auto in_flight = static_cast<int64_t>(std::min<size_t>(chunks.size(), base.window));
  int64_t scratch = 0;
  StrategyStep out = step_of(
      base, {record_direct_step(plan, base.methods, base.rules, profile, rank, std::move(chunks),
                                base.window, base.adamw(rank).moved, &scratch)});
  const RankTraffic& t = base.report.traffic.ranks[static_cast<size_t>(rank)];
  out.memory_bytes = t.param_bytes + t.grad_bytes + t.master_bytes + t.moment_bytes +
                     in_flight * largest + scratch;
  out.sent_bytes = out.critical.sent_bytes = static_cast<int64_t>(sent);
  out.name = "all-gather";
  out.assumption =
      "every rank gathers each matrix of its shard group, orthogonalizes it, and keeps its shard; "
      "an all-gather brings a byte to a node once (Moonlight).";
  return out;
}

StrategyStep whole_owners(const Planning& once, const MachineProfile& profile, bool permanent) {
  const Base base(once, profile);
  const Plan& plan = base.plan;
  std::vector<int64_t> stored(plan.load().size(), 0);
  for (const Matrix& m : plan.matrices()) {
    const ElementBytes& b = base.of(m);
    // If the weights remain in the layout of the trainer, the owner's weight is its master weight.
    const int64_t weight = permanent || b.master == 0 ? b.param : 0;
    stored[static_cast<size_t>(m.owner)] += elements(m) * (weight + b.grad + b.momentum + b.master);
  }
  std::set<int32_t> ranks = simulated_ranks(once, SimulationOptions().max_ranks);
  ranks.insert(
      static_cast<int32_t>(std::max_element(stored.begin(), stored.end()) - stored.begin()));
  std::vector<RankRecording> recordings;
  int64_t memory = 0;
  double most_gathered = 0;
  for (const int32_t rank : ranks) {
    std::vector<DirectChunk> chunks;
    int64_t messages = 0, scratch = 0;
    double gathered = 0;
    for (const RankChunk& chunk : plan.rank_chunks(rank)) {
      if (chunk.kind != ChunkKind::kSlices)
        chunks.push_back(owned_chunk(base, chunk, rank, permanent, messages, gathered));
    }
    const Base::Local adamw = base.adamw(rank);
    const auto in_flight = static_cast<int64_t>(std::min<size_t>(chunks.size(), base.window));
    recordings.push_back(record_direct_step(plan, base.methods, base.rules, profile, rank,
                                            std::move(chunks), base.window, adamw.moved, &scratch));
    int64_t bytes = stored[static_cast<size_t>(rank)] + adamw.stored + scratch;
    if (!permanent) bytes += in_flight * messages + base.muon_params(rank);
    memory = std::max(memory, bytes);
    most_gathered = std::max(most_gathered, gathered);
  }
  StrategyStep out = step_of(base, recordings);
  out.memory_bytes = memory;
  out.sent_bytes += static_cast<int64_t>(most_gathered);
  out.name = permanent ? "permanent owners" : "whole-layer owners";
  out.assumption =
      permanent ? "a matrix, its gradient and its state are whole at its owner, balanced as ours; "
                  "the backward pass reduces gradients to owners and the next forward pass "
                  "broadcasts weights, outside of the step (DMuon)."
                : "the backward pass reduces each gradient to its owner, balanced as ours, which "
                  "keeps the state; the step sends new weights to all holders (Megatron's "
                  "layer-wise optimizer).";
  return out;
}

}  // namespace muonrt
