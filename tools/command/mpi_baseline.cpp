#include "command/mpi_baseline.hpp"

#if MUONRT_TOOL_MPI
#include <mpi.h>

#include <limits>
#include <stdexcept>

#include "command/launch.hpp"
#include "command/mpi_alarm.hpp"
#endif

namespace muonrt::tool {

#if MUONRT_TOOL_MPI

namespace {

/// One side of the exchange: bytes by peer, and where they begin.
struct Side {
  std::vector<int> counts, begins;
  int64_t end = 0;
  std::vector<unsigned char> memory;
  /// @return  whether MPI's integers hold it.
  bool add(int64_t bytes) {
    if (end + bytes > std::numeric_limits<int>::max()) return false;
    counts.push_back(static_cast<int>(bytes));
    begins.push_back(static_cast<int>(end));
    end += bytes;
    return true;
  }
};

class AllToAll final : public MpiBaseline {
 public:
  AllToAll(Side out, Side in, double timeout)
      : out_(std::move(out)), in_(std::move(in)), timeout_(timeout) {
    for (Side* side : {&out_, &in_}) side->memory.resize(static_cast<size_t>(side->end));
  }
  double run() override {
    const MpiAlarm alarm(timeout_);
    const double start = MPI_Wtime();
    const int code = MPI_Alltoallv(out_.memory.data(), out_.counts.data(), out_.begins.data(),
                                   MPI_BYTE, in_.memory.data(), in_.counts.data(),
                                   in_.begins.data(), MPI_BYTE, MPI_COMM_WORLD);
    if (code != MPI_SUCCESS) throw std::runtime_error("MPI_Alltoallv failed");
    return (MPI_Wtime() - start) * 1e3;
  }

 private:
  Side out_, in_;
  double timeout_;
};

}  // namespace

std::unique_ptr<MpiBaseline> MpiBaseline::of(int rank, const ExchangeSizes& sizes, double timeout) {
  if (!under_mpi()) return nullptr;
  const auto me = static_cast<size_t>(rank);
  Side out, in;
  // Every rank looks at all, so that all come to the same answer.
  for (size_t r = 0; r < sizes.size(); ++r) {
    Side sent, received;
    for (size_t peer = 0; peer < sizes.size(); ++peer)
      if (!sent.add(sizes[r][peer]) || !received.add(sizes[peer][r])) return nullptr;
    if (r == me) {
      out = std::move(sent);
      in = std::move(received);
    }
  }
  return std::make_unique<AllToAll>(std::move(out), std::move(in), timeout);
}

#else

std::unique_ptr<MpiBaseline> MpiBaseline::of(int, const ExchangeSizes&, double) { return nullptr; }

#endif

}  // namespace muonrt::tool
