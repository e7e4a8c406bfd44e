#include "support/backends.hpp"

#include <cstdlib>
#include <utility>

#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"
#include "support/numerics/reference_ops.hpp"

namespace backends {

using namespace muonrt;

namespace {

struct Reference {
  reference::ReferenceOps ops;
  reference::ImmediateStream stream;
};

struct OnDevice {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> event;
};

constexpr int64_t kDeadlineMs = 60000;

Backend on_device(std::string name, bool slow, std::unique_ptr<Device> device) {
  auto keeper = std::make_shared<OnDevice>();
  keeper->device = std::move(device);
  keeper->stream = keeper->device->create_stream(StreamKind::kCompute);
  keeper->event = keeper->device->create_event();
  OnDevice* d = keeper.get();
  const auto wait = [d] {
    d->device->record(*d->event, *d->stream);
    d->device->synchronize(*d->event, Deadline::in_ms(kDeadlineMs));
    if (const auto error = d->device->error()) throw *error;
  };
  const auto memory = [keeper](int64_t bytes) {
    return std::shared_ptr<void>(keeper->device->allocate_shared(bytes),
                                 [keeper](void* p) { keeper->device->release(p); });
  };
  return {std::move(name), slow, &d->device->ops(), d->stream.get(), wait, keeper, memory};
}

}  // namespace

Backend reference() {
  auto keeper = std::make_shared<Reference>();
  const auto memory = [](int64_t bytes) {
    const auto size = static_cast<size_t>((bytes + 255) / 256 * 256);
    return std::shared_ptr<void>(std::aligned_alloc(256, size), std::free);
  };
  return {"reference", true, &keeper->ops, &keeper->stream, [] {}, keeper, memory};
}

Backend host(int threads, bool portable_gemm) {
  return on_device(cat("host, ", threads, threads == 1 ? " thread" : " threads",
                       portable_gemm ? ", portable" : ""),
                   portable_gemm,
                   host::make_host_device({.threads = threads, .portable_gemm = portable_gemm}));
}

Backend cuda(bool naive_products, SymmetricProvider symmetric) {
  const bool own = symmetric != SymmetricProvider::kDefault;
  return on_device(cat("cuda", naive_products ? ", naive products" : "", own ? ", symmetric: " : "",
                       own ? name_of(symmetric) : ""),
                   false,
                   make_cuda_device(0, {.naive_products = naive_products, .symmetric = symmetric}));
}

std::vector<Backend> all() {
  std::vector<Backend> list = {reference(), host(1), host(2), host(1, /*portable_gemm=*/true)};
  if (cuda_device_count() > 0) list.push_back(cuda());
  return list;
}

}  // namespace backends
