#include "support/backends.hpp"

#include <utility>

#include "host/host_device.hpp"
#include "support/reference_ops.hpp"

namespace backends {

using namespace muonrt;

namespace {

struct Reference {
  reference::ReferenceOps ops;
  reference::ImmediateStream stream;
};

struct Host {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Event> event;
};

constexpr int64_t kDeadlineMs = 60000;

}  // namespace

Backend reference() {
  auto keeper = std::make_shared<Reference>();
  return {"reference", true, &keeper->ops, &keeper->stream, [] {}, keeper};
}

Backend host(int threads, bool portable_gemm) {
  auto keeper = std::make_shared<Host>();
  keeper->device = host::make_host_device({.threads = threads, .portable_gemm = portable_gemm});
  keeper->stream = keeper->device->create_stream(StreamKind::kCompute);
  keeper->event = keeper->device->create_event();
  Host* h = keeper.get();
  const auto wait = [h] {
    h->device->record(*h->event, *h->stream);
    h->device->synchronize(*h->event, Deadline::in_ms(kDeadlineMs));
    if (const auto error = h->device->error()) throw *error;
  };
  const std::string name = cat("host, ", threads, threads == 1 ? " thread" : " threads",
                               portable_gemm ? ", portable" : "");
  return {name, portable_gemm, &h->device->ops(), h->stream.get(), wait, keeper};
}

std::vector<Backend> all() {
  return {reference(), host(1), host(2), host(1, /*portable_gemm=*/true)};
}

}  // namespace backends
