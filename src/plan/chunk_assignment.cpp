#include "plan/chunk_assignment.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/checked.hpp"
#include "plan/batch.hpp"
#include "plan/callback_chunks.hpp"
#include "plan/chunks.hpp"
#include "plan/relay.hpp"

namespace muonrt {

namespace {

/// The minimum size of a slice of an AdamW parameter, in elements. It takes precedence over
/// chunk_bytes, because smaller messages would only add latency.
constexpr int64_t kMinSlice = 1024;

/// Matrices, or slices, may share a chunk if their classes are equal. The class of slices also
/// contains the mesh dims over which the parameter is distributed, so a rank has the same peers for
/// all slices of a chunk. For the same reason, the class contains the replicating mesh dims if the
/// return has two levels.
struct ChunkClass {
  int32_t priority;
  bool by_callback;  // true if the caller's functions transfer the data
  ChunkKind kind;
  DType gather, back;
  std::vector<int64_t> over = {};
  // ChunkSpec::relay; if it is > 0, `relay_over` contains the replicating mesh dims.
  int32_t relay = 0;
  std::vector<int64_t> relay_over = {};
  // ParamSpec::update_every. All matrices of a chunk have the same value, so a step runs the whole
  // chunk or nothing of it.
  int32_t update_every = 1;
  auto operator<=>(const ChunkClass&) const = default;
};

ChunkClass class_of(const ParamSpec& spec, const PlanOptions& options) {
  ChunkClass out{spec.priority, spec.by_callback, ChunkKind::kDirections, options.transport_dtype,
                 options.transport_dtype};
  if (!owner_assembles_gradient(spec)) return out;
  out.kind = ChunkKind::kPartialGrads;
  out.gather = spec.grad_dtype;
  if (spec.role == Role::kMuon) return out;
  out.kind = ChunkKind::kSlices;
  out.update_every = spec.update_every;
  out.back = spec.master ? DType::kF32 : spec.dtype;
  const Layout& layout = spec.layout;
  const Mesh& mesh = layout.mesh();
  out.over.push_back(static_cast<int64_t>(mesh.hash()));
  const auto add = [&](const std::vector<int>& dims) {
    for (const int k : dims) {
      if (mesh.shape()[static_cast<size_t>(k)] > 1) out.over.push_back(mesh.stride(k));
    }
    out.over.push_back(-1);
  };
  add(layout.replica_dims());
  add(layout.partial_dims());
  out.over.push_back(spec.grad_layout ? 1 : 0);
  return out;
}

/// Returns the number of local elements on the rank that holds the largest share of the tensor.
int64_t largest_share(const Layout& layout) {
  int64_t out = 0;
  for (const ShardRun& run : shard_runs(layout)) out = std::max(out, run.numel);
  return out;
}

/// Returns the order in which chunks of these classes are exchanged. A return in two levels takes
/// much longer than a direct return. After the first window - 1 chunks with direct returns, up to
/// window - 1 chunks with two levels follow. Their gathers overlap with the orthogonalization of
/// the chunks before them, and their returns with the products of the chunks after them. All
/// further chunks with two levels come last, because the gather of the next direct chunk would
/// otherwise have to wait for them.
std::vector<int32_t> order_of(const std::vector<const ChunkClass*>& classes, int window) {
  std::vector<int32_t> out(classes.size());
  std::iota(out.begin(), out.end(), 0);
  const auto part = [&](int32_t i) {
    const ChunkClass& c = *classes[static_cast<size_t>(i)];
    return std::tuple(c.priority, c.by_callback, c.kind);
  };
  for (auto begin = out.begin(), end = begin; begin != out.end(); begin = end) {
    end = std::find_if(begin, out.end(), [&](int32_t i) { return part(i) != part(*begin); });
    const auto relayed = std::stable_partition(
        begin, end, [&](int32_t i) { return classes[static_cast<size_t>(i)]->relay == 0; });
    const auto moved = relayed + std::min<int64_t>(window - 1, end - relayed);
    std::rotate(begin + std::min<int64_t>(window - 1, relayed - begin), relayed, moved);
  }
  return out;
}

}  // namespace

void Plan::assign_chunks(const std::vector<int32_t>& by_name, const std::vector<int32_t>& params) {
  RelayChooser relays(problem_.params, problem_.options, holders_);
  std::map<ChunkClass, std::vector<int32_t>>
      classes;  // ids of matrices, or of parameters if the kind is kSlices
  for (const int32_t id : by_name) {
    const int32_t param = matrices_[static_cast<size_t>(id)].param;
    ChunkClass of = class_of(problem_.params[static_cast<size_t>(param)], problem_.options);
    of.relay = relays.block(param, matrices_[static_cast<size_t>(id)].index);
    if (of.relay > 0) of.relay_over = relays.over(param);
    classes[std::move(of)].push_back(id);
  }
  for (const int32_t p : params) {
    const ParamSpec& spec = problem_.params[static_cast<size_t>(p)];
    if (spec.role != Role::kAdamW || !owner_assembles_gradient(spec) || spec.layout.numel() == 0)
      continue;
    ChunkClass of = class_of(spec, problem_.options);
    of.relay = relays.block(p, -1);
    classes[std::move(of)].push_back(p);
  }
  std::vector<const ChunkClass*> chunk_classes;
  for (const auto& [of, members] : classes) {
    ChunkSpec proto;
    proto.kind = of.kind;
    proto.gather_dtype = of.gather;
    proto.return_dtype = of.back;
    proto.relay = of.relay;
    proto.by_callback = of.by_callback;
    proto.update_every = of.update_every;
    if (of.by_callback) {
      add_callback_chunks(proto, members);
    } else if (of.kind == ChunkKind::kSlices) {
      add_segment_chunks(proto, members);
    } else {
      add_matrix_chunks(proto, members);
    }
    chunk_classes.resize(chunks_.size(), &of);
  }
  const std::vector<int32_t> order = order_of(chunk_classes, problem_.options.window);
  std::vector<ChunkSpec> ordered;
  std::vector<int32_t> place(chunks_.size());
  for (const int32_t chunk : order) {
    place[static_cast<size_t>(chunk)] = static_cast<int32_t>(std::ssize(ordered));
    ordered.push_back(std::move(chunks_[static_cast<size_t>(chunk)]));
  }
  chunks_ = std::move(ordered);
  for (Matrix& m : matrices_) m.chunk = place[static_cast<size_t>(m.chunk)];
  for (size_t id = 0; id < matrices_.size(); ++id)
    chunks_[static_cast<size_t>(matrices_[id].chunk)].matrices.push_back(static_cast<int32_t>(id));
}

void Plan::add_matrix_chunks(const ChunkSpec& proto, const std::vector<int32_t>& by_name) {
  // The budget limits the bytes of an owner's whole matrices, which are in f32 if they are sums of
  // partial gradients.
  const int64_t element_bytes =
      size_of(proto.kind == ChunkKind::kPartialGrads ? DType::kF32 : proto.gather_dtype);
  std::vector<ChunkItem> items;
  items.reserve(by_name.size());
  Numbering<BatchKey> batches;
  int32_t param = -1, batch = 0;
  // The largest number of ranks that hold one matrix. If it is 1, nothing is exchanged.
  int64_t ranks = 1;
  for (const int32_t id : by_name) {
    const Matrix& m = matrices_[static_cast<size_t>(id)];
    const ParamSpec& spec = problem_.params[static_cast<size_t>(m.param)];
    if (m.param != param || !spec.parts.empty()) batch = batches.of(batch_key(m, spec.group));
    if (m.param != param)
      ranks = std::max(ranks, std::ssize(holders_.group(m.param, m.index).members));
    param = m.param;
    const int64_t bytes = checked_mul(checked_mul(m.rows, m.cols), element_bytes);
    items.push_back({m.owner, batch, cost_of(m, spec), bytes});
  }
  const PlanOptions& o = problem_.options;
  const int32_t wanted =
      ranks == 1 ? 1 : chunks_to_overlap(items, o.window, least_part(o.least_part, ranks));
  const Chunking chunks = cut_chunks(items, o.chunk_bytes, wanted);
  const size_t first = chunks_.size();
  chunks_.resize(first + static_cast<size_t>(chunks.chunks), proto);
  for (size_t i = 0; i < by_name.size(); ++i) {
    const size_t chunk = first + static_cast<size_t>(chunks.chunk_of[i]);
    matrices_[static_cast<size_t>(by_name[i])].chunk = static_cast<int32_t>(chunk);
    chunks_[chunk].bytes += items[i].bytes;
  }
}

// The first chunk contains the first parameter of every owner, the second chunk the second one, and
// so on. All owners therefore work at the same time, with any window. In a serial step, a chunk
// contains only one parameter.
void Plan::add_callback_chunks(const ChunkSpec& proto, std::vector<int32_t> ids) {
  std::sort(ids.begin(), ids.end());
  std::vector<size_t> next(static_cast<size_t>(problem_.options.world), chunks_.size());
  for (size_t first = 0, end = 0; first < ids.size(); first = end) {
    const int32_t param = matrices_[static_cast<size_t>(ids[first])].param;
    size_t chunk = problem_.options.serial ? chunks_.size() : 0;
    for (end = first; end < ids.size(); ++end) {
      const Matrix& m = matrices_[static_cast<size_t>(ids[end])];
      if (m.param != param) break;
      chunk = std::max(chunk, next[static_cast<size_t>(m.owner)]);
    }
    if (chunk == chunks_.size()) chunks_.push_back(proto);
    for (size_t i = first; i < end; ++i) {
      Matrix& m = matrices_[static_cast<size_t>(ids[i])];
      m.chunk = static_cast<int32_t>(chunk);
      next[static_cast<size_t>(m.owner)] = chunk + 1;
    }
    chunks_[chunk].bytes += callback_owner_bytes(*this, {ids.data() + first, ids.data() + end});
  }
}

void Plan::add_segment_chunks(const ChunkSpec& proto, const std::vector<int32_t>& params_by_name) {
  const int64_t budget = std::max(kMinSlice, problem_.options.chunk_bytes / 4);  // in elements
  int64_t taken = budget;  // elements of the largest owner in the current chunk
  for (const int32_t p : params_by_name) {
    const Layout& layout = problem_.params[static_cast<size_t>(p)].layout;
    const int64_t share = largest_share(layout);
    const int64_t count = std::max<int64_t>(1, ceil_div(share, layout.replicas() * budget));
    const int64_t slice = ceil_div(ceil_div(share, count), layout.replicas());
    for (int64_t i = 0; i < count; ++i) {
      if (taken + slice > budget || i > 0) {
        chunks_.push_back(proto);
        taken = 0;
      }
      taken += slice;
      chunks_.back().segments.push_back({p, static_cast<int32_t>(i), static_cast<int32_t>(count)});
      chunks_.back().bytes += layout.numel() / count * 4;
    }
  }
}

}  // namespace muonrt
