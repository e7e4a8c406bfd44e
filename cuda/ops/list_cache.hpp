#pragma once

#include <map>
#include <utility>
#include <vector>

#include "backend/device.hpp"
#include "cuda/device/check.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/device/stream_list.hpp"
#include "cuda/kernels/kernels.hpp"

namespace muonrt::cuda {

/// Device copies of the lists that ops receive in host memory. When a list is used for the first
/// time, the cache allocates a copy and waits until it is complete. Later calls find the copy by
/// the address of the list. They also compare the contents, because a different list may now be at
/// this address. If the list is unchanged, they neither allocate nor wait.
///
/// A Source (list_sources.hpp) is created from the arguments of an op, compares itself with the
/// arguments of later calls, and returns the tables that kernels read.
template <class Source>
class ListCache {
 public:
  using Item = typename Source::Item;

  /// @param streams  the streams whose kernels read the tables.
  ListCache(Device& device, const StreamList& streams) : device_(device), streams_(streams) {}

  template <class... Given>
  const Table<Item>& find(const void* address, cudaStream_t stream, const Given&... given) {
    const auto at = entries_.find(address);
    if (at != entries_.end()) {
      if (at->second.source.is(given...)) return at->second.table;
      streams_.finish();  // kernels that read the old list may still be pending
      entries_.erase(at);
    }
    Entry entry{Source(given...), Buffer(), {}};
    upload(entry, entry.source.lists(), stream);
    return entries_.emplace(address, std::move(entry)).first->second.table;
  }

 private:
  struct Entry {
    Source source;
    Buffer memory;
    Table<Item> table;
  };

  void upload(Entry& entry, const ItemList<Item>& lists, cudaStream_t stream) {
    const RelaxedCapture relaxed;
    const size_t item_bytes = lists.items.size() * sizeof(Item);
    const size_t job_bytes = lists.jobs.size() * sizeof(Job);
    const size_t jobs_at = (item_bytes + alignof(Job) - 1) / alignof(Job) * alignof(Job);
    entry.memory = Buffer(device_, static_cast<int64_t>(jobs_at + job_bytes));
    char* to = entry.memory.template as<char>();
    entry.table = {reinterpret_cast<const Item*>(to), reinterpret_cast<const Job*>(to + jobs_at),
                   static_cast<int64_t>(lists.jobs.size())};
    copy(to, lists.items.data(), item_bytes, stream);
    copy(to + jobs_at, lists.jobs.data(), job_bytes, stream);
    MUONRT_CUDA(cudaStreamSynchronize(stream));
  }

  static void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    if (bytes > 0) MUONRT_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  }

  Device& device_;
  const StreamList& streams_;
  std::map<const void*, Entry> entries_;
};

}  // namespace muonrt::cuda
