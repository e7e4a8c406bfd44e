#include "plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "plan/batch.hpp"
#include "plan/carried.hpp"
#include "plan/chunks.hpp"
#include "plan/exchange.hpp"
#include "plan/ownership.hpp"

namespace muonrt {

namespace {

void check_options(const PlanOptions& o) {
  MUONRT_REQUIRE(o.world >= 1, Status::kInvalidArgument, "plan: world size ", o.world,
                 " (at least 1 rank is needed); give the number of ranks");
  MUONRT_REQUIRE(o.chunk_bytes >= 1, Status::kInvalidArgument, "plan: chunk budget of ",
                 o.chunk_bytes, " bytes (at least 1 is needed); give a larger one");
  MUONRT_REQUIRE(o.window >= 1, Status::kInvalidArgument, "plan: window of ", o.window,
                 " chunks (at least 1 has to be in flight); give 1 or more");
}

void check_param(const ParamSpec& spec, size_t index) {
  MUONRT_REQUIRE(!spec.name.empty(), Status::kInvalidArgument, "plan: parameter ", index,
                 " has no name (ties are broken and errors told by name); name it");
  MUONRT_REQUIRE(std::isfinite(spec.update_scale), Status::kInvalidArgument, "param '", spec.name,
                 "': update scale ", spec.update_scale, " is not finite; give a finite scale");
  for (const MatrixPart& part : spec.parts) {
    MUONRT_REQUIRE(std::isfinite(part.update_scale), Status::kInvalidArgument, "param '", spec.name,
                   "': part '", part.name, "' has update scale ", part.update_scale,
                   ", which is not finite; give a finite scale");
  }
  MUONRT_REQUIRE(spec.owner >= -1, Status::kInvalidArgument, "param '", spec.name, "': owner ",
                 spec.owner, " is no rank; give a rank, or -1 to let the planner choose");
  MUONRT_REQUIRE(!spec.carried || spec.owner >= 0, Status::kInvalidArgument, "param '", spec.name,
                 "': the caller's functions carry it, but it has no owner; give it one");
  MUONRT_REQUIRE(spec.owner < 0 || spec.role == Role::kMuon, Status::kInvalidArgument, "param '",
                 spec.name,
                 "': an owner is given (AdamW is applied by every holder to its own "
                 "shard); leave the owner at -1");
}

/// Parameters by name. Errors: INVALID_ARGUMENT if two share one.
std::vector<int32_t> order_by_name(const std::vector<ParamSpec>& params) {
  std::vector<int32_t> order(params.size());
  std::iota(order.begin(), order.end(), 0);
  const auto name = [&](int32_t p) -> const std::string& {
    return params[static_cast<size_t>(p)].name;
  };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return name(a) < name(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    MUONRT_REQUIRE(name(order[i - 1]) != name(order[i]), Status::kInvalidArgument,
                   "plan: two parameters are named '", name(order[i]),
                   "' (names tell them apart on every rank); give distinct names");
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

/// Exact in 64 bits, so that sums do not depend on their order.
int64_t cost_of(const Matrix& m, const ParamSpec& spec) {
  MUONRT_REQUIRE(m.flops < 0x1p62, Status::kInvalidArgument, "param '", spec.name, "': ", m.rows,
                 " x ", m.cols, " takes ", m.flops,
                 " FLOPs (more than the planner can count); use AdamW for it");
  return std::llround(m.flops);
}

/// Numbers distinct keys by their order of appearance.
template <class Key>
class Numbering {
 public:
  int32_t of(const Key& key) {
    return numbers_.try_emplace(key, static_cast<int32_t>(numbers_.size())).first->second;
  }

 private:
  std::map<Key, int32_t> numbers_;
};

}  // namespace

Plan::Plan(Problem problem) : problem_(std::move(problem)) {
  check_options(problem_.options);
  for (size_t p = 0; p < problem_.params.size(); ++p) check_param(problem_.params[p], p);
  const std::vector<int32_t> params_by_name = order_by_name(problem_.params);
  holders_ = HolderTable(problem_.params, problem_.options.world);
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
  choose_slots(by_name);
}

void Plan::add_matrices() {
  int64_t count = 0;
  for (const ParamSpec& spec : problem_.params) count = checked_add(count, matrices_in(spec));
  MUONRT_REQUIRE(count <= INT32_MAX, Status::kInvalidArgument, "plan: ", count,
                 " matrices are more than the planner can number; use fewer, larger ones");
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
      m.flops = orthogonalize_flops(m.method, rows, cols);
      parts.push_back(m);
    };
    if (spec.parts.empty()) add_part(shape[shape.size() - 2], shape.back());
    for (const MatrixPart& part : spec.parts) add_part(length(part.rows), length(part.cols));
    for (int64_t index = 0; index < matrices; ++index) {
      matrices_.push_back(parts[static_cast<size_t>(index) % parts.size()]);
      matrices_.back().index = index;
    }
  }
}

void Plan::choose_owners(const std::vector<int32_t>& by_name) {
  OwnerProblem task;
  task.ranks = problem_.options.world;
  task.sets = holders_.candidates();
  std::map<int32_t, int32_t> only;  // rank -> set of that rank alone
  Numbering<std::pair<BatchKey, bool>> shapes;
  int32_t param = -1, shape = 0;
  int64_t total = 0;  // must be countable, for the sums below it are not checked
  for (const int32_t id : by_name) {
    const Matrix& m = matrices_[static_cast<size_t>(id)];
    const ParamSpec& spec = problem_.params[static_cast<size_t>(m.param)];
    if (m.param != param || !spec.parts.empty())
      shape = shapes.of({batch_key(m, spec.group), m.rows > m.cols});
    param = m.param;
    const HolderGroup& group = holders_.group(m.param, m.index);
    int32_t set = group.candidates;
    if (spec.owner >= 0) {
      MUONRT_REQUIRE(spec.owner < task.ranks, Status::kInvalidArgument, "param '", spec.name,
                     "': owner ", spec.owner, " is outside the world; give 0 to ", task.ranks - 1);
      MUONRT_REQUIRE(
          spec.carried || group.find(spec.owner) != nullptr, Status::kInvalidArgument, "param '",
          spec.name, "': owner ", spec.owner, " is none of the ranks that hold ",
          spec.stack ? cat("matrix ", m.index / parts_of(spec), " of it") : std::string("it"), " (",
          spec.layout.describe(), "); give one of those, or -1");
      const auto [at, is_new] =
          only.try_emplace(spec.owner, static_cast<int32_t>(task.sets.size()));
      if (is_new) task.sets.push_back({spec.owner});
      set = at->second;
    }
    task.items.push_back({cost_of(m, spec), set, shape});
    total = checked_add(total, task.items.back().cost);
  }
  const Ownership owners = assign_owners(task);
  for (size_t i = 0; i < by_name.size(); ++i) {
    Matrix& m = matrices_[static_cast<size_t>(by_name[i])];
    m.owner = owners.owner[i];
    const HolderPlace* place = holders_.group(m.param, m.index).find(m.owner);
    m.replica = place ? place->replica : 0;
  }
  load_.assign(owners.load.begin(), owners.load.end());
  makespan_ = static_cast<double>(owners.makespan);
  lower_bound_ = static_cast<double>(owners.lower_bound);
}

void Plan::choose_slots(const std::vector<int32_t>& by_name) {
  const int64_t element_bytes = size_of(problem_.options.transport);
  std::vector<ChunkItem> items;
  std::vector<int32_t> ids, carried;  // of `items`; of the matrices that the caller carries
  items.reserve(by_name.size());
  Numbering<BatchKey> batches;
  int32_t param = -1, batch = 0;
  for (const int32_t id : by_name) {
    const Matrix& m = matrices_[static_cast<size_t>(id)];
    const ParamSpec& spec = problem_.params[static_cast<size_t>(m.param)];
    if (spec.carried) {
      carried.push_back(id);
      continue;
    }
    if (m.param != param || !spec.parts.empty()) batch = batches.of(batch_key(m, spec.group));
    param = m.param;
    const int64_t bytes = checked_mul(checked_mul(m.rows, m.cols), element_bytes);
    items.push_back({m.owner, batch, cost_of(m, spec), bytes});
    ids.push_back(id);
  }
  const Chunking chunks = cut_chunks(items, problem_.options.chunk_bytes);
  slots_.assign(static_cast<size_t>(chunks.slots), Slot{});
  for (size_t i = 0; i < ids.size(); ++i) {
    matrices_[static_cast<size_t>(ids[i])].slot = chunks.slot[i];
    slots_[static_cast<size_t>(chunks.slot[i])].bytes += items[i].bytes;
  }
  // A slot for each carried parameter, in the order of the list.
  std::sort(carried.begin(), carried.end());
  for (const int32_t id : carried) {
    Matrix& m = matrices_[static_cast<size_t>(id)];
    if (slots_.empty() || slots_.back().carried != m.param)
      slots_.push_back({{}, carried_full_bytes(*this, m.param), m.param});
    m.slot = static_cast<int32_t>(slots_.size()) - 1;
  }
  for (size_t id = 0; id < matrices_.size(); ++id)
    slots_[static_cast<size_t>(matrices_[id].slot)].matrices.push_back(static_cast<int32_t>(id));
}

std::vector<SlotPlan> Plan::rank_slots(int rank) const {
  MUONRT_REQUIRE(rank >= 0 && rank < problem_.options.world, Status::kInvalidArgument,
                 "plan: rank ", rank, " is outside the world; give 0 to ",
                 problem_.options.world - 1);
  BlockTable blocks(problem_.params, holders_);
  const ExchangeContext context{*this, holders_, blocks};
  const auto by_owner = [](const Part& a, const Part& b) {
    return std::pair(a.peer, a.matrix) < std::pair(b.peer, b.matrix);
  };
  std::vector<SlotPlan> out;
  std::vector<Part> gather, back;
  std::vector<int32_t> owned;
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].carried >= 0) {
      out.emplace_back().slot = static_cast<int32_t>(s);
      add_carried_slot(context, rank, slots_[s].matrices, out.back());
      continue;
    }
    gather.clear();
    back.clear();
    owned.clear();
    for (const int32_t id : slots_[s].matrices) {
      const Matrix& m = matrices_[static_cast<size_t>(id)];
      if (m.owner == rank) owned.push_back(id);
      const HolderPlace* place = holders_.group(m.param, m.index).find(rank);
      if (place == nullptr || context.blocks_of(id, *place).empty()) continue;
      back.push_back({m.owner, id, *place});
      if (place->replica == m.replica) gather.push_back(back.back());
    }
    if (owned.empty() && back.empty()) continue;
    std::sort(gather.begin(), gather.end(), by_owner);
    std::sort(back.begin(), back.end(), by_owner);
    SlotPlan& slot = out.emplace_back();
    slot.slot = static_cast<int32_t>(s);
    add_holder_side(context, gather, back, slot);
    add_owner_side(context, owned, slot);
  }
  return out;
}

MemoryPlan Plan::memory(int rank) const {
  const PlanOptions& options = problem_.options;
  const bool staged = options.commit == CommitMode::kAtomic;
  MemoryPlan out;
  int64_t gather_send = 0, gather_receive = 0, return_send = 0, return_receive = 0;
  const std::vector<SlotPlan> slots = rank_slots(rank);
  for (const SlotPlan& slot : slots) {
    gather_send = std::max(gather_send, slot.gather_send_bytes);
    gather_receive = std::max(gather_receive, slot.gather_receive_bytes);
    return_send = std::max(return_send, slot.return_send_bytes);
    return_receive = std::max(return_receive, slot.return_receive_bytes);
    if (staged) out.staged_bytes += slot.return_receive_bytes;
  }
  if (staged) return_receive = 0;
  const int64_t in_flight = std::min<int64_t>(options.window, std::ssize(slots));
  out.message_bytes = in_flight * (gather_send + gather_receive + return_send + return_receive);
  for (const ParamSpec& spec : problem_.params)
    out.state_bytes += spec.layout.local_numel(rank) * state_bytes_per_element(spec.role);
  return out;
}

}  // namespace muonrt
