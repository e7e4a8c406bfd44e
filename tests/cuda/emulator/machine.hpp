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

/// The state of the emulated GPUs, except their memory. `mutex` protects all other members.
struct Machine {
  std::recursive_mutex mutex;
  std::set<Stream*> streams;  // all streams except the default streams
  Stream default_streams[kDevices];
  std::map<std::pair<std::thread::id, int>, std::unique_ptr<Stream>> of_threads;
  // Number of bytes of shared memory that a kernel may use on a device.
  std::map<std::pair<const void*, int>, size_t> shared_bytes;
  std::set<std::pair<const void*, int>> loaded;  // kernels that are loaded, with the device
  unsigned contexts = 0;                         // devices that have a context, one bit for each
  bool held = false, fail_next = false, lost = false;
  cudaError_t last = cudaSuccess;
  int64_t foreign_calls = 0, slow_calls = 0, graph_launches = 0, sms = 2;
  Launched launched;
  int locks = 0;  // number of times that the thread with the mutex has locked it

  Machine() {
    for (int device = 0; device < kDevices; ++device) default_streams[device].device = device;
  }
};

Machine& machine();
/// The state of the calling thread. `in_foreign_context` is true if the thread is in a context that
/// the program has created on this device.
extern thread_local int current_device;
extern thread_local bool in_foreign_context;

struct Lock {
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

/// Stores an error for cudaGetLastError and returns it.
cudaError_t result(cudaError_t error);

/// Creates a context on the current device, as nearly every runtime call does.
void touch();

/// Returns the stream that a handle denotes for the calling thread and its current device.
Stream& of(cudaStream_t stream);
bool is_alive(const Stream* stream);
/// Calls visit(stream) for every stream.
template <class Visit>
void for_each_stream(const Visit& visit) {
  for (Stream& s : machine().default_streams) visit(s);
  for (const auto& [key, s] : machine().of_threads) visit(*s);
  for (Stream* s : machine().streams) visit(*s);
}

/// Makes the stream's next entry wait for the work that the rules of the default stream require. If
/// the default stream is used while a blocking stream is being captured, invalidates the capture
/// and returns an error.
cudaError_t order(Stream& stream);
/// Appends an entry to the stream, or to its capture.
void append(Stream& stream, std::function<bool()> entry);
/// Returns true if calls may wait or allocate. If a capture forbids such calls, invalidates the
/// capture and returns false.
bool may_wait();

}  // namespace emulator
