#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "control.hpp"
#include "memory.hpp"
#include "stream.hpp"

namespace emulator {

/// All there is of the emulated GPUs, but for their memory. Under its mutex.
struct Machine {
  std::recursive_mutex mutex;
  std::set<Stream*> streams;  // all but the default ones
  Stream default_streams[kDevices];
  std::map<std::pair<std::thread::id, int>, std::unique_ptr<Stream>> of_threads;
  std::map<std::pair<const void*, int>, size_t> shared_bytes;  // granted, by kernel and device
  std::set<std::pair<const void*, int>> loaded;                // kernels, by device
  unsigned contexts = 0;  // devices that have one, a bit for each
  bool held = false, fail_next = false, lost = false;
  cudaError_t last = cudaSuccess;
  int64_t foreign_calls = 0, slow_calls = 0, graph_launches = 0, sms = 2;
  Launched launched;
  int locks = 0;  // that the owner of the mutex holds

  Machine() {
    for (int device = 0; device < kDevices; ++device) default_streams[device].device = device;
  }
};

Machine& machine();
/// Of the calling thread. `in_foreign_context`: in one of the program's own, on that device.
extern thread_local int current_device;
extern thread_local bool in_foreign_context;

struct Lock {
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

/// Keeps an error for cudaGetLastError.
cudaError_t result(cudaError_t error);

/// Gives the current device a context, as nearly every call of the runtime does.
void touch();

/// The stream that a handle names to the calling thread on its current device.
Stream& of(cudaStream_t stream);
bool is_alive(const Stream* stream);
/// Calls visit(stream) for every stream there is.
template <class Visit>
void for_each_stream(const Visit& visit) {
  for (Stream& s : machine().default_streams) visit(s);
  for (const auto& [key, s] : machine().of_threads) visit(*s);
  for (Stream* s : machine().streams) visit(*s);
}

/// Makes the stream's next entry wait for what the default stream's rules say. Errors: the default
/// stream while a blocking one is captured, which spoils that capture.
cudaError_t order(Stream& stream);
/// At the end of the stream, or of what is captured there.
void append(Stream& stream, std::function<bool()> entry);
/// False, and what is captured is spoilt, where somebody captures who forbids what may wait or
/// allocate.
bool may_wait();

}  // namespace emulator
