#include "muonrt/step/memory.hpp"

#include <algorithm>
#include <cstring>

#include "backend/cuda_device.hpp"
#include "backend/ops.hpp"

namespace muonrt::tool {

struct StepMemory::Inside {
  // On the host there is no device; buffers are plain.
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> done;
  std::vector<Buffer> shared;
  std::vector<std::unique_ptr<unsigned char[]>> plain;
};

StepMemory::StepMemory(bool cuda, int rank) : inside_(std::make_unique<Inside>()) {
  if (!cuda) return;
  index_ = rank % std::max(1, cuda_device_count());
  inside_->device = make_cuda_device(index_);
  inside_->stream = inside_->device->create_stream(StreamKind::kCompute);
  inside_->done = inside_->device->create_event();
}

StepMemory::~StepMemory() = default;

unsigned char* StepMemory::allocate(int64_t bytes) {
  if (bytes == 0) return nullptr;
  unsigned char* out = nullptr;
  if (inside_->device) {
    inside_->shared.push_back(Buffer::shared(*inside_->device, bytes));
    out = static_cast<unsigned char*>(inside_->shared.back().data());
    std::memset(out, 0, static_cast<size_t>(bytes));
  } else {
    inside_->plain.push_back(std::make_unique<unsigned char[]>(static_cast<size_t>(bytes)));
    out = inside_->plain.back().get();
  }
  return out;
}

void StepMemory::copy(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kTimeoutMs = 60000;
  Device& device = *inside_->device;
  device.ops().copy(*inside_->stream, to, from, bytes);
  device.record(*inside_->done, *inside_->stream);
  device.synchronize(*inside_->done, Deadline::in_ms(kTimeoutMs));
  if (const auto error = device.error()) throw *error;
}

std::vector<unsigned char> StepMemory::read(const void* from, int64_t bytes) {
  std::vector<unsigned char> out(static_cast<size_t>(bytes));
  if (bytes == 0) return out;
  if (!inside_->device) {
    std::memcpy(out.data(), from, out.size());
    return out;
  }
  const Buffer staging = Buffer::shared(*inside_->device, bytes);
  copy(staging.data(), from, bytes);
  std::memcpy(out.data(), staging.data(), out.size());
  return out;
}

void StepMemory::write(void* to, const std::vector<unsigned char>& from) {
  if (from.empty()) return;
  if (!inside_->device) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  const Buffer staging = Buffer::shared(*inside_->device, std::ssize(from));
  std::memcpy(staging.data(), from.data(), from.size());
  copy(to, staging.data(), std::ssize(from));
}

}  // namespace muonrt::tool
