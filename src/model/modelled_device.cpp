#include "model/modelled_device.hpp"

#include "base/checked.hpp"
#include "model/modelled_ops.hpp"

namespace muonrt {

namespace {

struct ModelledStream final : Stream {
  explicit ModelledStream(std::vector<RecordedOp>& to) : ops(&to) {}
  std::vector<RecordedOp>* ops;
};

struct ModelledEvent final : Event {
  int64_t last = -1;  // number of the last kRecord of this event; -1 if none
};

[[noreturn]] void throw_unknown(const char* what) {
  throw Error(Status::kNotSupported,
              cat("the model of time cannot run ", what, ", whose time is unknown"));
}

}  // namespace

ModelledDevice::ModelledDevice(const MachineProfile& profile, const MatrixRules& rules,
                               int32_t rank, int world)
    : profile_(profile), ops_(std::make_unique<ModelledOps>(*this, profile, rules, world)) {
  recording_.rank = rank;
}

ModelledDevice::~ModelledDevice() = default;

void ModelledDevice::begin_step() {
  const int32_t rank = recording_.rank;
  recording_ = {};
  recording_.rank = rank;
  host_seconds_ = 0;
  host_after_ = -1;
}

RecordedOp& ModelledDevice::append(Stream& stream, OpKind kind) {
  if (kind != OpKind::kRecord && kind != OpKind::kWait) host_seconds_ += profile_.launch_seconds;
  std::vector<RecordedOp>& ops = *static_cast<ModelledStream&>(stream).ops;
  ops.push_back({.kind = kind, .enqueued = host_seconds_, .after = host_after_});
  return ops.back();
}

void* ModelledDevice::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  const int64_t at = next_address_;
  next_address_ = checked_add(at, round_up(bytes, kMemoryAlignment));
  ++allocations_;
  allocated_bytes_ += bytes;
  return reinterpret_cast<void*>(at);
}

void ModelledDevice::release(void*) noexcept {}

void* ModelledDevice::allocate_shared(int64_t bytes) {
  if (bytes == 0) return nullptr;
  shared_.push_back(std::make_unique<char[]>(static_cast<size_t>(bytes)));
  return shared_.back().get();
}

std::unique_ptr<Stream> ModelledDevice::create_stream(StreamKind kind) {
  return std::make_unique<ModelledStream>(kind == StreamKind::kCompute ? recording_.compute
                                                                       : recording_.exchange);
}

std::unique_ptr<Event> ModelledDevice::create_event() { return std::make_unique<ModelledEvent>(); }

void ModelledDevice::record(Event& event, Stream& stream) {
  const int64_t number = recording_.events++;
  static_cast<ModelledEvent&>(event).last = number;
  append(stream, OpKind::kRecord).index = number;
}

void ModelledDevice::wait(Stream& stream, const Event& event) {
  const int64_t number = static_cast<const ModelledEvent&>(event).last;
  if (number >= 0) append(stream, OpKind::kWait).index = number;
}

void ModelledDevice::call(Stream&, int (*)(void*, void*), void*, int64_t*) {
  throw_unknown("the caller's functions");
}

void ModelledDevice::timestamp(Stream& stream, int64_t* where) {
  append(stream, OpKind::kTimestamp).where = where;
}

void ModelledDevice::synchronize(const Event& event, Deadline) {
  const int64_t number = static_cast<const ModelledEvent&>(event).last;
  if (number < 0) return;
  host_after_ = number;
  host_seconds_ = 0;
}

void ModelledComm::exchange(Stream& stream, std::span<const SendTo> sends,
                            std::span<const ReceiveFrom> receives) {
  std::vector<RecordedExchange>& all = device_.recording().exchanges;
  RecordedExchange out;
  for (const SendTo& s : sends) {
    if (s.peer != rank()) bytes_sent_ += s.bytes;
    out.sends.push_back({s.peer, s.bytes});
  }
  for (const ReceiveFrom& r : receives) out.receives.push_back({r.peer, r.bytes});
  device_.append(stream, OpKind::kExchange).index = std::ssize(all);
  all.push_back(std::move(out));
}

void ModelledComm::reduce_max(Stream& stream, const float*, float*, int64_t n) {
  device_.append(stream, OpKind::kReduce).bytes = n * 4;
}

void ModelledComm::reduce_sum(Stream& stream, const int64_t*, int64_t*, int64_t n) {
  device_.append(stream, OpKind::kReduce).bytes = n * 8;
}

void ModelledComm::allgather(const void*, void*, int64_t) { throw_unknown("an allgather"); }

std::unique_ptr<Comm> ModelledComm::duplicate() {
  return std::make_unique<ModelledComm>(device_, world_);
}

}  // namespace muonrt
