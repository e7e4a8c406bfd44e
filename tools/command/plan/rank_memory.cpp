#include "command/plan/rank_memory.hpp"

#include <cstring>

#include "backend/cuda_device.hpp"
#include "backend/ops.hpp"
#include "command/gpu.hpp"

namespace muonrt::tool {

struct RankMemory::Inside {
  // null on the host
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> done;
  std::vector<Buffer> buffers;
  std::vector<std::unique_ptr<unsigned char[]>> plain;
  Buffer staging;  // pinned memory for copies, which grows as needed

  void* staging_of(int64_t bytes) {
    if (staging.bytes() < bytes) {
      staging = Buffer();
      staging = Buffer::shared(*device, bytes);
    }
    return staging.data();
  }
};

RankMemory::RankMemory(bool cuda, int rank) : inside_(std::make_unique<Inside>()) {
  if (!cuda) return;
  index_ = gpu_of(rank);
  inside_->device = make_cuda_device(index_, {.naive_products = true});  // only for copies
  inside_->stream = inside_->device->create_stream(StreamKind::kCompute);
  inside_->done = inside_->device->create_event();
}

RankMemory::~RankMemory() = default;

bool RankMemory::on_host() const { return !inside_->device; }

unsigned char* RankMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  if (on_host()) {
    inside_->plain.push_back(std::make_unique<unsigned char[]>(static_cast<size_t>(bytes)));
    return inside_->plain.back().get();
  }
  inside_->buffers.push_back(Buffer::shared(*inside_->device, bytes));
  auto* const out = inside_->buffers.back().as<unsigned char>();
  std::memset(out, 0, static_cast<size_t>(bytes));
  return out;
}

unsigned char* RankMemory::allocate_far(int64_t bytes) {
  if (bytes == 0 || on_host()) return allocate(bytes);
  inside_->buffers.emplace_back(*inside_->device, bytes);
  return inside_->buffers.back().as<unsigned char>();
}

void RankMemory::copy(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kTimeoutMs = 60000;
  Device& device = *inside_->device;
  device.ops().copy(*inside_->stream, to, from, bytes);
  device.record(*inside_->done, *inside_->stream);
  device.synchronize(*inside_->done, Deadline::in_ms(kTimeoutMs));
  if (const auto error = device.error()) throw *error;
}

std::vector<unsigned char> RankMemory::read(const void* from, int64_t bytes) {
  std::vector<unsigned char> out(static_cast<size_t>(bytes));
  if (bytes == 0) return out;
  if (on_host()) {
    std::memcpy(out.data(), from, out.size());
    return out;
  }
  void* const staging = inside_->staging_of(bytes);
  copy(staging, from, bytes);
  std::memcpy(out.data(), staging, out.size());
  return out;
}

void RankMemory::write(void* to, std::span<const unsigned char> from) {
  if (from.empty()) return;
  if (on_host()) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  void* const staging = inside_->staging_of(std::ssize(from));
  std::memcpy(staging, from.data(), from.size());
  copy(to, staging, std::ssize(from));
}

}  // namespace muonrt::tool
