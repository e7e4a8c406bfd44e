#include "plan/chunks.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/checked.hpp"

namespace muonrt {

namespace {

/// The items of one owner in the order in which they are exchanged. Items before index `at` have
/// been assigned to chunks.
struct Queue {
  std::vector<int32_t> items;
  std::vector<int64_t> cost;    // cost[n] is the cost of the first n items
  std::vector<int32_t> end;     // a chunk that begins with item i must end at or before item end[i]
  std::vector<int32_t> chunks;  // chunks[i] is the number of chunks that the items from i on need
  int32_t at = 0;

  int32_t size() const { return static_cast<int32_t>(items.size()); }
  bool done() const { return at == size(); }
  int64_t cost_to(int32_t n) const { return cost[static_cast<size_t>(n)]; }
};

void measure(const std::vector<ChunkItem>& all, int64_t budget, Queue& q) {
  const size_t n = q.items.size();
  q.cost.assign(n + 1, 0);
  q.end.assign(n + 1, static_cast<int32_t>(n));
  q.chunks.assign(n + 1, 0);
  const auto item = [&](size_t i) -> const ChunkItem& {
    return all[static_cast<size_t>(q.items[i])];
  };
  for (size_t i = 0; i < n; ++i) q.cost[i + 1] = q.cost[i] + item(i).cost;
  int64_t bytes = 0;  // bytes of items [i, end)
  size_t end = 0;
  for (size_t i = 0; i < n; ++i) {
    // `end` never decreases. A chunk with only one item may exceed the budget.
    while (end < n && (end == i || item(end).bytes <= budget - bytes)) bytes += item(end++).bytes;
    q.end[i] = static_cast<int32_t>(end);
    bytes -= item(i).bytes;
  }
  for (size_t i = n; i-- > 0;) q.chunks[i] = 1 + q.chunks[static_cast<size_t>(q.end[i])];
}

std::vector<Queue> queues_of(const std::vector<ChunkItem>& items, int64_t budget) {
  std::vector<int32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const auto key = [&](int32_t i) {
      const ChunkItem& item = items[static_cast<size_t>(i)];
      return std::tuple(item.owner, -item.cost, item.batch, i);
    };
    return key(a) < key(b);
  });
  std::vector<Queue> out;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto owner = [&](size_t k) { return items[static_cast<size_t>(order[k])].owner; };
    if (i == 0 || owner(i) != owner(i - 1)) out.emplace_back();
    out.back().items.push_back(order[i]);
  }
  for (Queue& q : out) measure(items, budget, q);
  return out;
}

/// Returns the item before which the owner's part of the next chunk ends. The cost of this part is
/// as close to `target` as possible. The part must stay within the budget, and the remaining items
/// must fit into the `left` chunks that follow.
int32_t chunk_end(const Queue& q, int64_t target, int32_t left) {
  int32_t first = q.at;
  while (q.chunks[static_cast<size_t>(first)] > left) ++first;
  const int32_t last = q.end[static_cast<size_t>(q.at)];
  int32_t best = first;
  for (int32_t i = first; i <= last && q.cost_to(best) < target; ++i) {
    if (std::abs(q.cost_to(i) - target) <= std::abs(q.cost_to(best) - target)) best = i;
  }
  return best;
}

}  // namespace

int32_t chunks_to_overlap(const std::vector<ChunkItem>& items, int window, int64_t least) {
  int32_t out = 1;
  if (window == 1) return out;
  struct Total {
    int64_t matrices = 0, bytes = 0;
  };
  std::map<int32_t, Total> owners;
  for (const ChunkItem& item : items) {
    Total& owned = owners[item.owner];
    ++owned.matrices;
    owned.bytes = checked_add(owned.bytes, item.bytes);
  }
  for (const auto& [owner, owned] : owners) {
    const int64_t in_flight = std::min<int64_t>(window, owned.bytes / least);
    const int64_t more = std::min<int64_t>(kMaxChunks, owned.bytes / kEfficient / least);
    out = std::max(out, static_cast<int32_t>(std::min(owned.matrices, std::max(in_flight, more))));
  }
  return out;
}

Chunking cut_chunks(const std::vector<ChunkItem>& items, int64_t budget, int32_t wanted) {
  std::vector<Queue> queues = queues_of(items, budget);
  Chunking out;
  out.chunk_of.assign(items.size(), -1);
  if (!items.empty()) out.chunks = wanted;
  // The largest cost of an owner's items: of all items (`most`), and of the items that are assigned
  // so far (`height`).
  int64_t most = 0, height = 0;
  for (const Queue& q : queues) {
    out.chunks = std::max(out.chunks, q.chunks[0]);
    most = std::max(most, q.cost.back());
  }
  const auto done = [](const Queue& q) { return q.done(); };
  for (int32_t chunk = 0; chunk < out.chunks; ++chunk) {
    if (std::all_of(queues.begin(), queues.end(), done)) {
      out.chunks = chunk;
      break;
    }
    const int32_t left = out.chunks - chunk - 1;
    // Each remaining chunk gets an equal share of the remaining cost. If the next matrix of an
    // owner costs more than this share, its cost becomes the target of all owners, because they
    // would have to wait for this owner anyway.
    const int64_t even = height + ceil_div(most - height, left + 1);
    int64_t target = even;
    for (const Queue& q : queues) {
      if (!q.done() && q.cost_to(q.at) < even) target = std::max(target, q.cost_to(q.at + 1));
    }
    for (Queue& q : queues) {
      for (const int32_t end = chunk_end(q, target, left); q.at < end; ++q.at)
        out.chunk_of[static_cast<size_t>(q.items[static_cast<size_t>(q.at)])] = chunk;
      height = std::max(height, q.cost_to(q.at));
    }
  }
  return out;
}

}  // namespace muonrt
