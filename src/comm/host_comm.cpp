#include "comm/host_comm.hpp"

#include "base/text.hpp"
#include "host/host_stream.hpp"

namespace muonrt {

using host::host_stream;

std::string HostComm::describe() const {
  return cat(transport_->name(), ", ", size(), size() == 1 ? " rank" : " ranks");
}

StreamKind HostComm::stream_kind() const {
  return transport_->caller_thread_only() ? StreamKind::kCommOnCaller : StreamKind::kComm;
}

template <class Function>
void HostComm::enqueue(Stream& stream, Function function) {
  host_stream(stream).enqueue(host::Task([this, function] {
    const std::lock_guard lock(mutex_);
    with_comm_error(function);
  }));
}

void HostComm::exchange(Stream& stream, std::span<const SendTo> sends,
                        std::span<const ReceiveFrom> receives) {
  enqueue(stream, [this, sends, receives] {
    transport_->exchange(sends, receives);
    int64_t bytes = 0;
    for (const SendTo& s : sends) bytes += s.peer == rank() ? 0 : s.bytes;
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    exchanges_.fetch_add(1, std::memory_order_relaxed);
  });
}

void HostComm::reduce_max(Stream& stream, const float* in, float* out, int64_t n) {
  enqueue(stream, [this, in, out, n] { transport_->reduce_max(in, out, n); });
}

void HostComm::reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) {
  enqueue(stream, [this, in, out, n] { transport_->reduce_sum(in, out, n); });
}

// After its first error, a transport sends no data, so the reduction that follows only throws this
// error.
void HostComm::clear_if_aborted(Stream& stream, int64_t* entered) {
  enqueue(stream, [this, entered] {
    if (transport_->error()) *entered = 0;
  });
}

void HostComm::allgather(const void* mine, void* all, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  with_comm_error([&] { transport_->allgather(mine, all, bytes); });
}

std::unique_ptr<Comm> HostComm::duplicate() {
  const std::lock_guard lock(mutex_);
  // allocated before the collective, because a failed allocation after it would leave the peers
  // waiting
  auto out = std::make_unique<HostComm>(nullptr);
  with_comm_error([&] { out->transport_ = transport_->duplicate(); });
  return out;
}

void HostComm::abort(Status status, const std::string& message) noexcept {
  transport_->abort(status, message);
}

}  // namespace muonrt
