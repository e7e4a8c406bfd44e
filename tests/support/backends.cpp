#include "support/backends.hpp"

#include <utility>

#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"

namespace backends {

using namespace muonrt;

namespace {

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
  std::vector<Backend> list = {host(1), host(2), host(1, /*portable_gemm=*/true)};
  if (cuda_device_count() > 0) list.push_back(cuda());
  return list;
}

}  // namespace backends
