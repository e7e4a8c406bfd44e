#include "comm/callback_transport.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>

#include "base/sized_struct.hpp"
#include "base/text.hpp"

extern "C" void muonrt_transport_init_sized(muonrt_transport_t* transport, uint32_t size) {
  muonrt::fill_sized(transport, size, [](muonrt_transport_t& out) { out.rank = -1; });
}

namespace muonrt {

namespace {

/// Converts the value that a function returned to a status. If the value is not an error, the
/// status is COMM.
Status status_from(muonrt_status_t value) {
  const auto status = static_cast<Status>(value);
  return is_status(value) && status != Status::kSkipped ? status : Status::kComm;
}

}  // namespace

muonrt_transport_t read_transport(const muonrt_transport_t* table) {
  constexpr size_t kFirstVersion =
      offsetof(muonrt_transport_t, destroy) + sizeof(muonrt_transport_t::destroy);
  MUONRT_REQUIRE(table, Status::kInvalidArgument,
                 "transport: the table is NULL; pass a muonrt_transport_t");
  const size_t given = table->struct_size;
  const bool known = given == kFirstVersion || given >= sizeof(muonrt_transport_t);
  MUONRT_REQUIRE(known && given <= 64 * kFirstVersion, Status::kInvalidArgument,
                 "transport: struct_size is ", given, ", but must be ", kFirstVersion,
                 " or at least ", sizeof(muonrt_transport_t),
                 "; call muonrt_transport_init() first");
  muonrt_transport_t out;
  muonrt_transport_init(&out);
  std::memcpy(&out, table, std::min(given, sizeof out));
  const auto* const raw = reinterpret_cast<const unsigned char*>(table);
  MUONRT_REQUIRE(std::all_of(raw + std::min(given, sizeof out), raw + given,
                             [](unsigned char byte) { return byte == 0; }),
                 Status::kInvalidArgument,
                 "transport: a field is set that this version of muonrt does not know; leave it at "
                 "its default, or use a newer library");
  out.struct_size = sizeof out;
  MUONRT_REQUIRE(out.size >= 1 && out.rank >= 0 && out.rank < out.size, Status::kInvalidArgument,
                 "transport: rank ", out.rank, " of ", out.size,
                 " ranks does not exist; set 0 <= rank < size");
  MUONRT_REQUIRE(out.caller_thread_only == 0 || out.caller_thread_only == 1,
                 Status::kInvalidArgument, "transport: caller_thread_only is ",
                 out.caller_thread_only, "; set 0 or 1");
  MUONRT_REQUIRE(out.exchange && out.allgather, Status::kInvalidArgument,
                 "transport: ", out.exchange ? "allgather" : "exchange",
                 " is NULL, but is required; set it");
  return out;
}

struct CallbackTransport::Shared {
  explicit Shared(const muonrt_transport_t& t) : table(t) {}
  ~Shared() {
    if (owned && table.destroy) table.destroy(table.state);
  }
  muonrt_transport_t table;
  bool owned = false;
  std::mutex mutex;  // allows only one call at a time, even if duplicates share the state
};

CallbackTransport::CallbackTransport(const muonrt_transport_t& table)
    : CallbackTransport(std::make_shared<Shared>(table)) {
  own_state(true);
}

void CallbackTransport::own_state(bool owns) noexcept { shared_->owned = owns; }

CallbackTransport::CallbackTransport(std::shared_ptr<Shared> shared)
    : Transport(shared->table.rank, shared->table.size),
      shared_(std::move(shared)),
      name_(shared_->table.name ? shared_->table.name : "callback") {
  shared_->table.name = nullptr;  // the string belongs to the caller and was copied above
  sends_.reserve(static_cast<size_t>(size()));
  receives_.reserve(static_cast<size_t>(size()));
}

void CallbackTransport::prepare_reduction(int64_t bytes) {
  const muonrt_transport_t& table = shared_->table;
  if (!table.reduce_sum || !table.reduce_max) Transport::prepare_reduction(bytes);
  if (table.reduce_sum) integers_.reserve(static_cast<size_t>(2 * bytes) / sizeof(int64_t));
  if (table.reduce_max) floats_.reserve(static_cast<size_t>(2 * bytes) / sizeof(float));
}

bool CallbackTransport::caller_thread_only() const { return shared_->table.caller_thread_only; }

Error CallbackTransport::error_from(muonrt_status_t status,
                                    char (&message)[kMessageCapacity]) const {
  message[kMessageCapacity - 1] = 0;
  const char* const text = message[0] ? message : "the transport gave no message";
  return error_with_message(status_from(status), [&] { return cat(where(), ": ", text); });
}

template <class Function, class... Arguments>
void CallbackTransport::call(Function function, Arguments... arguments) {
  char message[kMessageCapacity] = "";
  muonrt_status_t status = MUONRT_OK;
  {
    const std::lock_guard lock(shared_->mutex);
    status = function(shared_->table.state, arguments..., timeout_ms(), message, kMessageCapacity);
  }
  if (status != MUONRT_OK) throw error_from(status, message);
}

std::optional<Error> CallbackTransport::published_error() const {
  const muonrt_transport_t& table = shared_->table;
  if (!table.get_published_error) return std::nullopt;
  char message[kMessageCapacity] = "";
  const muonrt_status_t status = table.get_published_error(table.state, message, kMessageCapacity);
  if (status == MUONRT_OK) return std::nullopt;
  message[kMessageCapacity - 1] = 0;
  // This code does not use where(), because another thread may be running an operation.
  return error_with_message(
      status_from(status), [&] { return cat(name_, ": ", static_cast<const char*>(message)); }, -1,
      true);
}

void CallbackTransport::do_exchange(std::span<const SendTo> sends,
                                    std::span<const ReceiveFrom> receives) {
  sends_.clear();
  receives_.clear();
  for (const SendTo& s : sends) {
    if (s.peer != rank()) sends_.push_back({s.peer, 0, s.data, s.bytes});
  }
  for (const ReceiveFrom& r : receives) {
    if (r.peer != rank()) receives_.push_back({r.peer, 0, r.data, r.bytes});
  }
  call(shared_->table.exchange, sends_.data(), static_cast<int64_t>(sends_.size()),
       receives_.data(), static_cast<int64_t>(receives_.size()));
}

void CallbackTransport::do_allgather(const void* mine, void* all, int64_t bytes) {
  call(shared_->table.allgather, mine, all, bytes);
}

// The table's function receives `in` and `out` in a separate buffer, where they do not overlap.
// This also protects the caller's `out`, which may be the vote sum that decides whether a step is
// committed: `out` must not change if the function fails after writing its output.
template <class Function, class T>
void CallbackTransport::reduce(Function function, std::vector<T>& both, const T* in, T* out,
                               int64_t n) {
  both.assign(in, in + n);
  both.resize(static_cast<size_t>(2 * n));
  call(function, static_cast<const T*>(both.data()), both.data() + n, n);
  std::copy_n(both.data() + n, n, out);
}

void CallbackTransport::do_reduce_max(const float* in, float* out, int64_t n) {
  if (!shared_->table.reduce_max) return Transport::do_reduce_max(in, out, n);
  reduce(shared_->table.reduce_max, floats_, in, out, n);
}

void CallbackTransport::do_reduce_sum(const int64_t* in, int64_t* out, int64_t n) {
  if (!shared_->table.reduce_sum) return Transport::do_reduce_sum(in, out, n);
  reduce(shared_->table.reduce_sum, integers_, in, out, n);
}

std::unique_ptr<Transport> CallbackTransport::do_duplicate() {
  if (!shared_->table.duplicate) {
    auto out = std::unique_ptr<CallbackTransport>(new CallbackTransport(shared_));
    out->name_ = name_;
    return out;
  }
  muonrt_transport_t table;
  muonrt_transport_init(&table);
  table.rank = rank();
  table.size = size();
  call(shared_->table.duplicate, &table);
  std::unique_ptr<CallbackTransport> out;
  try {
    out = std::make_unique<CallbackTransport>(read_transport(&table));
  } catch (...) {
    if (table.destroy) table.destroy(table.state);  // no transport would destroy the state
    throw;
  }
  MUONRT_REQUIRE(out->rank() == rank() && out->size() == size(), Status::kComm, where(),
                 ": the duplicate has rank ", out->rank(), " and size ", out->size(),
                 ", but the original has rank ", rank(), " and size ", size(),
                 "; do not change them in duplicate()");
  return out;
}

void CallbackTransport::publish(const Error& error) noexcept {
  const muonrt_transport_t& table = shared_->table;
  if (!table.abort) return;
  const char* text = error.what();
  std::string with_rank;
  // The table's function has no parameter for the rank of the error, so the text names the rank.
  if (error.rank() >= 0 && error.rank() != rank() && !error.is_remote()) {
    try {
      with_rank = cat("rank ", error.rank(), ": ", error.message());
      text = with_rank.c_str();
    } catch (...) {  // out of memory: the text does not name the rank
    }
  }
  table.abort(table.state, static_cast<muonrt_status_t>(error.status()), text);
}

}  // namespace muonrt
