#include "plan/plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/fits_f32.hpp"
#include "plan/batch.hpp"
#include "plan/callback_chunks.hpp"
#include "plan/chunk_assignment.hpp"
#include "plan/exchange.hpp"
#include "plan/owners/cost.hpp"
#include "plan/owners/ownership.hpp"
#include "plan/slices.hpp"

namespace muonrt {

namespace {

void check_options(const PlanOptions& o) {
  MUONRT_REQUIRE(o.world >= 1, Status::kInvalidArgument, "plan: world is ", o.world,
                 ", but must be at least 1; pass the number of ranks");
  MUONRT_REQUIRE(o.chunk_bytes >= 1, Status::kInvalidArgument, "plan: chunk_bytes is ",
                 o.chunk_bytes, ", but must be at least 1; use a larger value");
  MUONRT_REQUIRE(o.least_part >= 1, Status::kInvalidArgument, "plan: least_part is ", o.least_part,
                 ", but must be at least 1; use a larger value");
  MUONRT_REQUIRE(o.max_peers >= 0, Status::kInvalidArgument, "plan: max_peers is ", o.max_peers,
                 ", but must be at least 0; use 0 (the default) or more");
  MUONRT_REQUIRE(o.replica_mode != ReplicaMode::kAuto || !o.machine.products.empty(),
                 Status::kInvalidArgument,
                 "plan: replica_mode is auto, but no machine is set, so times cannot be compared; "
                 "set a machine");
  MUONRT_REQUIRE(o.window >= 1, Status::kInvalidArgument, "plan: window is ", o.window,
                 ", but must be at least 1; use 1 or more");
}

void check_param(const ParamSpec& spec, size_t index) {
  MUONRT_REQUIRE(!spec.name.empty(), Status::kInvalidArgument, "plan: parameter ", index,
                 " has no name; set a name");
  constexpr const char* kRemedy =
      ", which f32 cannot represent; use lr_factors and scale_factors whose product is 0 or from "
      "1e-37 to 1e38";
  MUONRT_REQUIRE(fits_f32(spec.update_scale), Status::kInvalidArgument, "param '", spec.name,
                 "': update scale is ", spec.update_scale, kRemedy);
  for (const MatrixPart& part : spec.parts) {
    MUONRT_REQUIRE(fits_f32(part.update_scale), Status::kInvalidArgument, "param '", spec.name,
                   "': part '", part.name, "': update scale is ", part.update_scale, kRemedy);
  }
  MUONRT_REQUIRE(spec.owner >= -1, Status::kInvalidArgument, "param '", spec.name, "': owner ",
                 spec.owner, " is not a rank; use a rank, or -1 to let the planner choose");
  MUONRT_REQUIRE(
      !spec.by_callback || !owner_assembles_gradient(spec), Status::kNotSupported, "param '",
      spec.name,
      "': the caller's functions transfer it, but its gradients are partial or have another layout "
      "(",
      grad_layout(spec).describe(),
      "); reduce them to the layout of the parameter, or leave the functions out");
  const auto has_none = [](int32_t owner) { return owner < 0; };
  MUONRT_REQUIRE(
      !spec.by_callback ||
          (spec.owners.empty() ? spec.owner >= 0 : std::ranges::none_of(spec.owners, has_none)),
      Status::kInvalidArgument, "param '", spec.name,
      "': the caller's functions transfer it, but it has no owner; set its owner");
  MUONRT_REQUIRE(
      (spec.owner < 0 && spec.owners.empty()) || spec.role == Role::kMuon, Status::kInvalidArgument,
      "param '", spec.name,
      "': the owner is set, but AdamW parameters have none, because every holder updates its "
      "own shard; leave the owner at -1");
}

/// Returns the indices of the parameters in the order of their names.
/// Errors: INVALID_ARGUMENT if two names are equal.
std::vector<int32_t> order_by_name(const std::vector<ParamSpec>& params) {
  std::vector<int32_t> order(params.size());
  std::iota(order.begin(), order.end(), 0);
  const auto name = [&](int32_t p) -> const std::string& {
    return params[static_cast<size_t>(p)].name;
  };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return name(a) < name(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    MUONRT_REQUIRE(name(order[i - 1]) != name(order[i]), Status::kInvalidArgument,
                   "plan: two parameters are named '", name(order[i]), "'; use distinct names");
  }
  return order;
}

int64_t matrices_in(const ParamSpec& spec) {
  if (spec.role != Role::kMuon || spec.layout.numel() == 0) return 0;
  return checked_mul(spec.stack ? spec.layout.shape()[0] : 1, parts_of(spec));
}

Method method_of(const ParamSpec& spec, int64_t rows, int64_t cols) {
  try {
    return choose_method(spec.form, rows, cols, spec.newton_schulz_steps, spec.gram_restarts);
  } catch (const Error& error) {
    throw Error(error.status(), cat("param '", spec.name, "': ", error.message()));
  }
}

/// The sets of ranks that may own a matrix but are not sets of the holder table. Each set is
/// created when it is first needed.
class OwnerSets {
 public:
  OwnerSets(const HolderTable& holders, std::vector<std::vector<int32_t>>& sets)
      : holders_(holders), sets_(sets) {}

  int32_t of_rank(int32_t rank) {
    return of(ranks_, rank, [&] { return std::vector{rank}; });
  }

  /// Returns the set of the ranks that hold the matrix's replica.
  int32_t of_replica(const Matrix& m, const HolderGroup& group) {
    return of(replicas_, std::pair(&group, m.replica), [&] {
      std::vector<int32_t> out;
      for (const int32_t rank : holders_.candidates()[static_cast<size_t>(group.candidates)]) {
        if (group.find(rank)->replica == m.replica) out.push_back(rank);
      }
      return out;
    });
  }

 private:
  template <class Key, class Make>
  int32_t of(std::map<Key, int32_t>& known, const Key& key, const Make& make) {
    const auto [at, is_new] = known.try_emplace(key, static_cast<int32_t>(sets_.size()));
    if (is_new) sets_.push_back(make());
    return at->second;
  }

  const HolderTable& holders_;
  std::vector<std::vector<int32_t>>& sets_;
  std::map<int32_t, int32_t> ranks_;
  std::map<std::pair<const HolderGroup*, int32_t>, int32_t> replicas_;
};

/// Sets the replica of each rank that may own the matrices of a group, unless it is already set.
void add_replicas(const HolderGroup& group, OwnerProblem& task) {
  std::vector<int32_t>& replicas = task.replicas[static_cast<size_t>(group.candidates)];
  if (!replicas.empty()) return;
  for (const int32_t rank : task.sets[static_cast<size_t>(group.candidates)]) {
    const Holder* holder = group.find(rank);
    replicas.push_back(holder ? holder->replica : 0);
  }
}

/// Returns the rank that holds, in `replica`, the same shard and partial gradient as `rank`.
int32_t counterpart(const HolderGroup& group, int32_t rank, int32_t replica) {
  const Holder& mine = *group.find(rank);
  return group.rank_of(replica, mine.partial_index, mine.shard);
}

/// Returns the replica from which the gradient is gathered. If the owner holds the gradient, this
/// is its own replica; otherwise its rank number selects one.
int32_t gathered_replica(const HolderGroup& group, int32_t owner) {
  const Holder* holder = group.find(owner);
  return holder ? holder->replica : owner % group.replicas;
}

void check_count(int64_t matrices) {
  MUONRT_REQUIRE(matrices <= INT32_MAX, Status::kInvalidArgument, "plan: ", matrices,
                 " matrices are more than the planner supports; use fewer, larger ones");
}

}  // namespace

Plan::Plan(Problem problem) : problem_(std::move(problem)) {
  check_options(problem_.options);
  int64_t matrices = 0;
  for (size_t p = 0; p < problem_.params.size(); ++p) {
    check_param(problem_.params[p], p);
    matrices = checked_add(matrices, matrices_in(problem_.params[p]));
  }
  check_count(matrices);
  const std::vector<int32_t> params_by_name = order_by_name(problem_.params);
  holders_ = HolderTable(problem_.params, problem_.options.world);
  if (problem_.options.replica_mode == ReplicaMode::kAuto) {
    choose_replicas();
    return;
  }
  each_ = problem_.options.replica_mode == ReplicaMode::kEach || every_rank();
  add_matrices();
  std::vector<int32_t> first(problem_.params.size() + 1, 0);
  for (const Matrix& m : matrices_) ++first[static_cast<size_t>(m.param) + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<int32_t> by_name;
  by_name.reserve(matrices_.size());
  for (const int32_t p : params_by_name) {
    for (int32_t id = first[static_cast<size_t>(p)]; id < first[static_cast<size_t>(p) + 1]; ++id)
      by_name.push_back(id);
  }
  choose_owners(by_name);
  assign_chunks(by_name, params_by_name);
}

void Plan::choose_replicas() {
  Problem problem = problem_;
  problem.options.replica_mode = ReplicaMode::kOnce;
  Plan once(problem);
  const double once_seconds = step_seconds(once);
  // A plan with kEach has one matrix for each replica and can be large. It is made only if its
  // products by themselves take less time than the whole step with kOnce.
  double each_seconds = once.seconds_in_every_replica();
  if (each_seconds >= once_seconds) {
    *this = std::move(once);
  } else {
    problem.options.replica_mode = ReplicaMode::kEach;
    Plan each(std::move(problem));
    each_seconds = step_seconds(each);
    *this = each_seconds < once_seconds ? std::move(each) : std::move(once);
  }
  problem_.options.replica_mode = ReplicaMode::kAuto;
  once_seconds_ = once_seconds;
  each_seconds_ = each_seconds;
}

double Plan::seconds_in_every_replica() const {
  double seconds = 0;
  for (const Matrix& m : matrices_) {
    const ParamSpec& spec = problem_.params[static_cast<size_t>(m.param)];
    const int32_t copies = spec.by_callback ? 1 : holders_.group(m.param, m.index).replicas;
    seconds += product_seconds(m, spec, problem_.options.machine) * copies;
  }
  return seconds / problem_.options.world;
}

void Plan::add_matrices() {
  const auto copies_of = [&](int32_t param, int64_t index) {
    const HolderGroup& group = holders_.group(param, index);
    const bool alone = !each_ || problem_.params[static_cast<size_t>(param)].by_callback;
    if (every_rank() && !alone) return static_cast<int32_t>(group.members.size());
    return alone ? 1 : group.replicas;
  };
  int64_t count = 0;
  for (size_t p = 0; p < problem_.params.size(); ++p) {
    const int64_t matrices = matrices_in(problem_.params[p]);
    const int64_t copies = matrices > 0 ? copies_of(static_cast<int32_t>(p), 0) : 0;
    count = checked_add(count, checked_mul(matrices, copies));
  }
  check_count(count);
  matrices_.reserve(static_cast<size_t>(count));
  for (size_t p = 0; p < problem_.params.size(); ++p) {
    const ParamSpec& spec = problem_.params[p];
    const int64_t matrices = matrices_in(spec);
    if (matrices == 0) continue;
    const std::vector<int64_t>& shape = spec.layout.shape();
    std::vector<Matrix> parts;
    const auto add_part = [&](int64_t rows, int64_t cols) {
      Matrix m{static_cast<int32_t>(p), 0, rows, cols, {}, 0, -1, -1, -1};
      m.method = method_of(spec, rows, cols);
      m.cost = orthogonalize_cost(m.method, rows, cols);
      parts.push_back(m);
    };
    if (spec.parts.empty()) add_part(shape[shape.size() - 2], shape.back());
    for (const MatrixPart& part : spec.parts) add_part(length(part.rows), length(part.cols));
    for (int64_t index = 0; index < matrices; ++index) {
      const int32_t copies = copies_of(static_cast<int32_t>(p), index);
      for (int32_t copy = 0; copy < copies; ++copy) {
        Matrix& m = matrices_.emplace_back(parts[static_cast<size_t>(index) % parts.size()]);
        m.index = index;
        if (each_) m.replica = copy;
        if (every_rank() && !spec.by_callback)
          m.owner = holders_.group(m.param, index).members[static_cast<size_t>(copy)].rank;
      }
    }
  }
}

void Plan::choose_owners(const std::vector<int32_t>& by_name) {
  OwnerProblem task;
  task.ranks = problem_.options.world;
  task.sets = holders_.candidates();
  task.replicas.resize(task.sets.size());
  OwnerSets sets(holders_, task.sets);
  Numbering<std::pair<BatchKey, bool>> shapes;
  int32_t param = -1, shape = 0;
  int64_t total = 0;  // The total is checked for overflow here because the sums of loads are not.
  for (const int32_t id : by_name) {
    const Matrix& m = matrices_[static_cast<size_t>(id)];
    const ParamSpec& spec = problem_.params[static_cast<size_t>(m.param)];
    if (m.param != param || !spec.parts.empty())
      shape = shapes.of({batch_key(m, spec.group), m.rows > m.cols});
    param = m.param;
    const HolderGroup& group = holders_.group(m.param, m.index);
    const bool for_replica = each_ && !spec.by_callback;
    int32_t set = group.candidates;
    if (m.owner >= 0) {
      set = sets.of_rank(m.owner);
    } else if (for_replica) {
      set = sets.of_replica(m, group);
    }
    if (const int owner = owner_of(spec, m.index); owner >= 0) {
      MUONRT_REQUIRE(owner < task.ranks, Status::kInvalidArgument, "param '", spec.name,
                     "': owner ", owner, " is not a rank of the communicator; use 0 to ",
                     task.ranks - 1);
      MUONRT_REQUIRE(
          spec.by_callback || group.find(owner) != nullptr, Status::kInvalidArgument, "param '",
          spec.name, "': owner ", owner, " is not one of the ranks that hold ",
          spec.stack ? cat("matrix ", m.index / parts_of(spec), " of it") : std::string("it"),
          " in the layout ", spec.layout.describe(), "; use one of these",
          spec.stack ? " for each matrix" : "", ", or -1");
      if (m.owner < 0)
        set = sets.of_rank(for_replica ? counterpart(group, owner, m.replica) : owner);
    }
    if (set == group.candidates && group.replicas > 1) add_replicas(group, task);
    task.items.push_back({cost_of(m, spec), set, shape});
    const int64_t cost = task.items.back().cost;
    MUONRT_REQUIRE(total <= INT64_MAX - cost, Status::kInvalidArgument,
                   "plan: the FLOPs of all matrices", each_ ? " in every replica" : "",
                   " up to param '", spec.name, "' do not fit into 63 bits; ",
                   each_ ? "set replica_mode to once or auto" : "use AdamW for some parameters");
    total += cost;
  }
  task.replicas.resize(task.sets.size());
  const Ownership owners = assign_owners(task);
  for (size_t i = 0; i < by_name.size(); ++i) {
    Matrix& m = matrices_[static_cast<size_t>(by_name[i])];
    m.owner = owners.owner[i];
    const Holder* holder = holders_.group(m.param, m.index).find(m.owner);
    m.replica = holder ? holder->replica : 0;
    m.grad_replica = gathered_replica(holders_.grad_group(m.param, m.index), m.owner);
  }
  load_.assign(owners.load.begin(), owners.load.end());
  makespan_ = static_cast<double>(owners.makespan);
  lower_bound_ = static_cast<double>(owners.lower_bound);
}

std::vector<RankChunk> Plan::rank_chunks(int rank) const {
  MUONRT_REQUIRE(rank >= 0 && rank < problem_.options.world, Status::kInvalidArgument,
                 "plan: rank ", rank, " is outside the world; give 0 to ",
                 problem_.options.world - 1);
  BlockTable blocks(problem_.params, holders_);
  const ExchangeContext context{*this, holders_, blocks};
  std::vector<RankChunk> out;
  auto view = static_cast<int32_t>(problem_.params.size());
  for (size_t s = 0; s < chunks_.size(); ++s) {
    RankChunk chunk;
    chunk.index = static_cast<int32_t>(s);
    chunk.kind = chunks_[s].kind;
    chunk.gather_dtype = chunks_[s].gather_dtype;
    chunk.return_dtype = chunks_[s].return_dtype;
    chunk.update_every = chunks_[s].update_every;
    if (chunks_[s].by_callback) {
      add_callback_chunk(context, rank, chunks_[s], chunk);
      out.push_back(std::move(chunk));
      continue;
    }
    if (chunk.kind == ChunkKind::kSlices) {
      add_slices(*this, chunks_[s], rank, chunk);
    } else {
      const RankMessages messages = messages_of(*this, blocks, chunks_[s], rank);
      add_holder_side(context, messages, chunks_[s], rank, chunk);
      add_owner_side(context, messages, chunk);
    }
    if (chunk.owned.empty() && !chunk.takes_part()) continue;
    for (ShardBlock& block : chunk.owner_state_blocks) block.param += view;
    for (size_t i = 0; i < chunk.owner_state.size(); ++i) chunk.owner_state_views.push_back(view++);
    for (auto* list : {&chunk.gather_blocks, &chunk.return_blocks, &chunk.owner_state_blocks})
      list->shrink_to_fit();
    out.push_back(std::move(chunk));
  }
  return out;
}

}  // namespace muonrt
