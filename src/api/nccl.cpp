#include "muonrt/nccl.h"

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "api/structs.hpp"
#include "backend/cuda_comm.hpp"
#include "backend/cuda_device.hpp"
#include "base/sized_struct.hpp"
#include "comm/transport_bootstrap.hpp"
#include "optimizer/agreement.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

NcclOptions read_options(const muonrt_nccl_options_t* options) {
  constexpr const char* kName = "muonrt_comm_create_nccl";
  muonrt_nccl_options_t given;
  muonrt_nccl_options_init(&given);
  if (options) given = api::read_struct(options, given, kName);
  const int32_t ctas = given.max_ctas;
  MUONRT_REQUIRE(ctas > 0 && ctas <= 64 && (ctas & (ctas - 1)) == 0, Status::kInvalidArgument,
                 kName, ": max_ctas is ", ctas,
                 ", but must be a power of two from 1 to 64; set it to 8");
  MUONRT_REQUIRE(
      (given.borrow == 0 || given.borrow == 1) && (!given.borrow || given.nccl_comm),
      Status::kInvalidArgument, kName, ": borrow is ", given.borrow, " and nccl_comm is ",
      given.nccl_comm ? "set" : "NULL",
      ", but borrow must be 0, or 1 with an nccl_comm; set nccl_comm, or set borrow to 0");
  NcclOptions out;
  out.device_index = given.device_index;
  out.max_ctas = given.max_ctas;
  out.name = given.name ? given.name : "";
  out.from = given.nccl_comm;
  out.borrow = given.borrow;
  out.library_version = muonrt_get_version();
  return out;
}

/// Creates a communicator over two duplicates of `host`. It uses the first one for host memory, and
/// passes the second one to `make`.
template <class Make>
muonrt_comm_t* over(HostComm& host, Make make) {
  std::unique_ptr<Transport> own, its;
  with_comm_error([&] { own = host.transport().duplicate(); });
  std::unique_ptr<muonrt_comm> out;
  std::unique_ptr<Bootstrap> bootstrap;
  // If a rank fails in the following function, all ranks throw its error here. No rank then waits
  // in `make` for the failed rank.
  run_collectively(host, [&] {
    its = own->duplicate();
    out = std::make_unique<muonrt_comm>(std::move(own));
    bootstrap = make_bootstrap(std::move(its));
  });
  out->body->device = make(std::move(bootstrap));
  return api::release_comm(std::move(out));
}

/// Checks that muonrt was built with CUDA on every rank. On a rank without CUDA, `refuse` throws,
/// and all ranks return this error instead of waiting for that rank.
template <class Refuse>
void require_builds(Comm& host, Refuse refuse) {
  run_collectively(host, [&] {
    if (!cuda_is_built()) refuse();
  });
}

}  // namespace

extern "C" {

void muonrt_nccl_options_init_sized(muonrt_nccl_options_t* options, uint32_t size) {
  muonrt::fill_sized(options, size,
                     [](muonrt_nccl_options_t& out) { out.max_ctas = NcclOptions().max_ctas; });
}

muonrt_status_t muonrt_nccl_get_version(int32_t* version) {
  return as_status([&] {
    require_pointer(version, "muonrt_nccl_get_version", "version");
    *version = 0;
    *version = nccl_version();
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_create_nccl(muonrt_comm_t** comm, muonrt_comm_t* host,
                                        const muonrt_nccl_options_t* options) {
  return as_status([&] {
    if (comm) *comm = nullptr;
    const api::CommCall call(host, "muonrt_comm_create_nccl", "host");
    api::CommBody& h = call.body();
    NcclOptions settings;
    run_collectively(h.host, [&] {
      require_pointer(comm, "muonrt_comm_create_nccl", "comm");
      settings = read_options(options);
    });
    require_builds(h.host, [&] { make_nccl_comm(nullptr, settings); });
    *comm = over(h.host, [&](std::unique_ptr<Bootstrap> bootstrap) {
      return make_nccl_comm(std::move(bootstrap), settings);
    });
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_create_staged(muonrt_comm_t** comm, muonrt_comm_t* host,
                                          int32_t device_index) {
  return as_status([&] {
    if (comm) *comm = nullptr;
    const api::CommCall call(host, "muonrt_comm_create_staged", "host");
    api::CommBody& h = call.body();
    run_collectively(h.host, [&] { require_pointer(comm, "muonrt_comm_create_staged", "comm"); });
    require_builds(h.host, [&] { make_staged_comm(nullptr, device_index); });
    *comm = over(h.host, [&](std::unique_ptr<Bootstrap> bootstrap) {
      return make_staged_comm(std::move(bootstrap), device_index);
    });
    return Status::kOk;
  });
}

}  // extern "C"
