#include "state/copy/copier.hpp"

#include <algorithm>
#include <cstring>

#include "optimizer/agreement.hpp"
#include "state/moments.hpp"

namespace muonrt {

namespace {

/// The maximum number of elements that all ranks together may request from one rank in a round,
/// unless there are so many ranks that kLeastElements applies.
constexpr int64_t kRoundElements = int64_t{1} << 24;
// The number of elements that every rank may request from a rank in a round.
constexpr int64_t kLeastElements = int64_t{1} << 16;
constexpr int64_t kPartElements = 16;  // the memory of a Part, in elements

template <class T>
std::vector<unsigned char> as_bytes(const std::vector<T>& values) {
  std::vector<unsigned char> out(values.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

template <class T>
std::vector<T> from_bytes(const std::vector<unsigned char>& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// Encodes the list of a rank's shards for the exchange between ranks: the parameter, the kind and
// the extent of each shard.

void encode(const StateShard& shard, std::vector<int64_t>& out) {
  const Extent& e = shard.extent;
  out.insert(out.end(), {shard.tensor.param, shard.tensor.kind, std::ssize(e.shape)});
  for (size_t d = 0; d < e.shape.size(); ++d) {
    out.insert(out.end(), {e.shape[d], std::ssize(e.runs[d])});
    for (const Run& run : e.runs[d]) out.insert(out.end(), {run.begin, run.end});
  }
  out.insert(out.end(), {e.begin, e.end});
}

/// Calls `take(param, kind, extent)` for each shard in the list.
template <class Take>
void decode(const std::vector<int64_t>& list, const Take& take) {
  size_t at = 0;
  const auto next = [&] { return list.at(at++); };
  while (at < list.size()) {
    const int64_t param = next();
    const auto kind = static_cast<int32_t>(next());
    Extent e;
    e.shape.resize(static_cast<size_t>(next()));
    for (int64_t& size : e.shape) {
      size = next();
      Runs& runs = e.runs.emplace_back(static_cast<size_t>(next()));
      for (Run& run : runs) run.begin = next(), run.end = next();
    }
    e.begin = next(), e.end = next();
    take(param, kind, std::move(e));
  }
}

/// Requires that no shard of `to` overlaps a shard of `from`. Otherwise elements of `from` could be
/// overwritten before other ranks have read them. Two shards with the same elements at the same
/// address are allowed.
void require_apart(const std::vector<StateShard>& from, const std::vector<StateShard>& to) {
  const auto begin = [](const StateShard& s) { return reinterpret_cast<uintptr_t>(s.data); };
  const auto end = [&](const StateShard& s) {
    return begin(s) + static_cast<uintptr_t>(s.extent.numel() * bytes_of(s.tensor));
  };
  // The shards of `from`, ordered by the address at which their memory ends.
  std::map<uintptr_t, const StateShard*> by_end;
  for (const StateShard& s : from) by_end[end(s)] = &s;
  for (const StateShard& s : to) {
    for (auto at = by_end.upper_bound(begin(s)); at != by_end.end(); ++at) {
      const StateShard& old = *at->second;
      if (begin(old) >= end(s)) break;
      const bool same = begin(old) == begin(s) && old.tensor.name == s.tensor.name &&
                        old.tensor.kind == s.tensor.kind && old.extent == s.extent;
      MUONRT_REQUIRE(same, kInvalidArg, "copy_state: param ", in_quotes(s.tensor.name), ": its ",
                     kind_name(s.tensor.kind), " in to overlaps the memory of ",
                     kind_name(old.tensor.kind), " of param ", in_quotes(old.tensor.name),
                     " in from; use other memory, except for a shard with the same elements");
    }
  }
}

}  // namespace

Copier::Copier(Optimizer& to, Optimizer* from, BlockExchange& exchange)
    : to_(to), from_(from), exchange_(exchange), world_(static_cast<size_t>(to.comm().size())) {}

void Copier::prepare(std::vector<int64_t> index) {
  index_ = std::move(index);
  targets_ = local_state_shards(to_, true);
  write_.emplace(to_.device(), to_.settings().timeout_ms);
  if (!from_) return;
  from_->device().clear_error();  // clears the error of the step that failed
  read_.emplace(from_->device(), from_->settings().timeout_ms);
  shards_ = local_state_shards(*from_, true);
  require_apart(shards_, targets_);
  std::vector<unsigned char> values;
  for (const StateShard& shard : shards_) {
    if (!is_moment(shard.tensor.kind)) continue;
    for (int64_t at = 0; at < shard.extent.numel(); at += kLeastElements) {
      read(shard, at, std::min(kLeastElements, shard.extent.numel() - at), values);
      const auto bad = bad_moment(shard.tensor.kind, shard.tensor.dtype, from_->steps(), values);
      MUONRT_REQUIRE(!bad, Status::kInvalidState, "copy_state: param ",
                     in_quotes(shard.tensor.name), ": its ", kind_name(shard.tensor.kind),
                     " in from: element ", at + bad->index, " of the local shard ", bad->problem,
                     "; correct the state, or load a checkpoint");
    }
  }
}

void Copier::share_extents() {
  std::vector<int64_t> list, sizes(world_);
  Blocks blocks;
  run_or_abort(to_.comm(), [&] {
    for (const StateShard& shard : shards_) encode(shard, list);
    blocks.assign(world_, as_bytes(list));
  });
  const int64_t bytes = std::ssize(blocks[0]);
  to_.comm().allgather(&bytes, sizes.data(), sizeof bytes);
  blocks = exchange_.run(blocks, sizes);
  for (size_t r = 0; r < world_; ++r) {
    int64_t shard = 0;
    decode(from_bytes<int64_t>(blocks[r]), [&](int64_t param, int32_t kind, Extent extent) {
      sources_[{param, kind}].push_back({static_cast<int32_t>(r), shard++, std::move(extent)});
    });
  }
}

void Copier::require_elements() const {
  std::vector<Part> parts;
  for (size_t i = 0; i < targets_.size(); ++i)
    for (int64_t at = 0; at < targets_[i].extent.numel(); at += kRoundElements, parts.clear())
      assign(i, at, std::min(kRoundElements, targets_[i].extent.numel() - at), parts);
}

void Copier::copy() {
  Comm& comm = to_.comm();
  const int64_t most = std::max(kLeastElements, kRoundElements / comm.size());
  size_t shard = 0;
  int64_t at = 0;
  std::vector<int64_t> counts(world_), all(world_ * world_), sizes(world_);
  for (;;) {
    std::vector<Part> parts;
    std::vector<std::vector<Request>> requests(world_);
    run_or_abort(comm, [&] {
      for (int64_t left = most; left > 0 && shard < targets_.size();) {
        const int64_t numel = targets_[shard].extent.numel(),
                      count = std::min({left, numel - at, kLeastElements});
        const size_t before = parts.size();
        assign(shard, at, count, parts);
        left -= std::max(count, kPartElements * static_cast<int64_t>(parts.size() - before));
        at += count;
        if (at == numel) ++shard, at = 0;
      }
      for (const Part& p : parts) requests[static_cast<size_t>(p.rank)].push_back(p.request);
      for (size_t r = 0; r < world_; ++r) counts[r] = std::ssize(requests[r]);
    });
    comm.allgather(counts.data(), all.data(), static_cast<int64_t>(world_ * sizeof(int64_t)));
    if (std::all_of(all.begin(), all.end(), [](int64_t n) { return n == 0; })) return;
    Blocks blocks(world_);
    for (size_t r = 0; r < world_; ++r) {
      blocks[r] = as_bytes(requests[r]);
      sizes[r] = all[r * world_ + static_cast<size_t>(comm.rank())] *
                 static_cast<int64_t>(sizeof(Request));
    }
    blocks = exchange_.run(blocks, sizes);
    run_or_abort(comm, [&] {
      for (auto& block : blocks) block = elements_of(from_bytes<Request>(block));
      std::fill(sizes.begin(), sizes.end(), 0);
      for (const Part& p : parts)
        sizes[static_cast<size_t>(p.rank)] += p.request.count * bytes_of(targets_[p.to].tensor);
    });
    blocks = exchange_.run(blocks, sizes);
    run_or_abort(comm, [&] { place(parts, blocks); });
  }
}

int64_t Copier::bytes() const {
  int64_t out = 0;
  for (const StateShard& shard : targets_) out += shard.extent.numel() * bytes_of(shard.tensor);
  return out;
}

void Copier::read(const StateShard& shard, int64_t first, int64_t count,
                  std::vector<unsigned char>& out) {
  const int64_t size = bytes_of(shard.tensor);
  out.resize(static_cast<size_t>(count * size));
  read_->read(out.data(), static_cast<const char*>(shard.data) + first * size, count * size);
}

// Returns the elements that another rank has requested from this rank.
std::vector<unsigned char> Copier::elements_of(const std::vector<Request>& requests) {
  std::vector<unsigned char> out, values;
  for (const Request& request : requests) {
    read(shards_.at(static_cast<size_t>(request.shard)), request.first, request.count, values);
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

void Copier::place(const std::vector<Part>& parts, const Blocks& blocks) {
  std::vector<int64_t> taken(blocks.size());
  for (const Part& p : parts) {
    const StateShard& shard = targets_[p.to];
    const int64_t size = bytes_of(shard.tensor), bytes = p.request.count * size;
    int64_t& at = taken[static_cast<size_t>(p.rank)];
    write_->write(static_cast<char*>(shard.data) + p.to_first * size,
                  blocks[static_cast<size_t>(p.rank)].data() + at, bytes);
    at += bytes;
  }
}

/// Chooses a source for each of the elements [first, first + count) of shard number `to`. If this
/// rank holds the element, it is the source. Otherwise the source is the next rank that holds the
/// element, so requests are distributed over the replicas.
void Copier::assign(size_t to, int64_t first, int64_t count, std::vector<Part>& parts) const {
  const StateShard& target = targets_[to];
  const Extent extent = target.extent.part(first, first + count);
  std::vector<std::pair<int64_t, int64_t>> missing = {{0, count}}, left;
  const auto found =
      sources_.find({index_[static_cast<size_t>(target.tensor.param)], target.tensor.kind});
  const std::vector<Source> none;
  const std::vector<Source>& sources = found == sources_.end() ? none : found->second;
  const auto own = std::find_if(sources.begin(), sources.end(),
                                [&](const Source& s) { return s.rank >= to_.rank(); });
  const auto start = static_cast<size_t>(own - sources.begin());
  for (size_t i = 0; i < sources.size() && !missing.empty(); ++i) {
    const Source& source = sources[(start + i) % sources.size()];
    left.clear();
    size_t m = 0;
    for (const Overlap& o : overlaps(extent, source.extent)) {
      const int64_t end = o.first + o.count;
      for (; m < missing.size() && missing[m].first < end; ++m) {
        auto& [low, high] = missing[m];
        const int64_t begin = std::max(low, o.first), stop = std::min(high, end);
        if (begin < stop) {
          if (low < begin) left.emplace_back(low, begin);
          parts.push_back({source.rank,
                           {source.shard, o.second + begin - o.first, stop - begin},
                           to,
                           first + begin});
          low = stop;
        }
        if (high > end) break;
        if (low < high) left.emplace_back(low, high);
      }
    }
    left.insert(left.end(), missing.begin() + static_cast<std::ptrdiff_t>(m), missing.end());
    missing.swap(left);
  }
  if (missing.empty()) return;
  throw make_error(kInvalidArg, "copy_state: param ", in_quotes(target.tensor.name), ": element ",
                   extent.element_at(missing.front().first), " of its ",
                   kind_name(target.tensor.kind),
                   " is lost, because no rank passes an optimizer that holds it; load a "
                   "checkpoint");
}

}  // namespace muonrt
