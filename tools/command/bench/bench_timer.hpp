#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/cuda_device.hpp"
#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// After accesses to this number of bytes, L2 no longer contains the operands of the first runs.
constexpr int64_t kColdBytes = int64_t{128} << 20;
/// Maximum number of runs in one measurement, and therefore of copies of the operands.
constexpr int64_t kMaxRepeats = 100;
/// Portable loops are slow, so benchmarks do not run them for products and Newton-Schulz jobs with
/// more FLOPs than this.
constexpr double kMaxPortableFlops = 2e9;

/// Runs copies of up to 64 MiB. While the host enqueues the work to be measured, these copies keep
/// the GPU busy and evict all other data from L2. Multiple Device objects for one GPU can use the
/// same filler, one at a time. Does nothing on the host.
class Filler {
 public:
  explicit Filler(Workbench& bench);
  bool empty() const { return bytes_ == 0; }
  double copy_ms() const { return copy_ms_; }  // on the host's clock
  void enqueue(Workbench& bench, int64_t copies) const;

 private:
  Buffer from_, to_;
  int64_t bytes_ = 0;
  double copy_ms_ = 0;
};

/// Reads the clock rate and the power of a GPU every 20 ms on a separate thread.
class ClockSampler {
 public:
  /// @param reads  whether there is a GPU.
  explicit ClockSampler(bool reads);
  ~ClockSampler();
  ClockSampler(const ClockSampler&) = delete;
  ClockSampler& operator=(const ClockSampler&) = delete;
  /// Adds all following samples to `samples`. If `samples` is null, discards them.
  void read_into(std::vector<GpuClock>* samples);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GpuClock>* samples_ = nullptr;
  bool ends_ = false;
  std::thread thread_;
};

/// Measured times of one run in milliseconds, on the device's clock.
struct Times {
  std::vector<double> ms;
  std::vector<double> enqueue_ms;  // the host's time to enqueue a run
  int64_t repeats = 1;             // number of runs in each measurement
  /// True if the host had enqueued all runs of each measurement before the GPU started. Otherwise a
  /// time may include waiting for the host. Not set if the device is the host.
  std::optional<bool> ahead;
  std::vector<GpuClock> clocks;  // samples during the measurements; at least one on a GPU with NVML
};

/// Work to be measured. On a GPU, a measurement consists of enough runs to last a third of a
/// millisecond. It starts with a filler that lasts until the host has enqueued all runs. On the
/// host, a measurement is a single run.
class TimedWork {
 public:
  /// @param enqueue   receives the number of the run, for work that alternates between operands.
  /// @param name      the provider's name, for errors.
  /// @param portable  whether the work uses portable loops. They are slow, so the work is then
  ///     measured at most twice.
  TimedWork(Workbench& bench, const Filler& filler, std::function<void(int64_t run)> enqueue,
            const std::string& name, bool portable = false)
      : bench_(&bench),
        filler_(&filler),
        enqueue_(std::move(enqueue)),
        name_(name),
        portable_(portable) {}

  /// Runs the work without measuring it; runs portable work only once.
  /// @param steady  whether to run the work for 20 ms (at most 5000 runs) before each measurement
  ///     that takes less than 20 ms. The GPU then reaches the power and the clocks that this work
  ///     causes.
  void warm_up(bool steady);
  void measure(ClockSampler& clocks);
  const Times& times() const { return times_; }

 private:
  struct Taken {
    double ms, enqueue_ms;
    bool ahead;
  };
  Taken take(int64_t copies);
  Taken take_ahead();

  Workbench* bench_;
  const Filler* filler_;
  std::function<void(int64_t run)> enqueue_;
  std::string name_;
  bool portable_;
  int64_t next_ = 0, lead_ = 0, copies_ = 0;
  double run_ms_ = 0;  // time of one run on the host's clock
  Times times_;
  Buffer clock_;
};

/// Repeats work on a busy stream, and returns the time of one run in milliseconds. The result is
/// the median of `iters` measurements, each with enough runs to last about a millisecond.
/// @param most  maximum number of runs in a measurement.
double time_repeated(Workbench& bench, int iters, const std::function<void()>& enqueue,
                     int64_t most = 200);

/// Measures all items of work in turn, each once per round, so that clocks and temperature are the
/// same for all. The warm-up consists of at least --warmup rounds. It lasts at least as long as
/// --steady and, on a GPU, at least 50 ms.
void time_in_turns(const DeviceArguments& arguments, const Filler& filler,
                   std::vector<TimedWork>& works);

/// Returns the columns min_ms, median_ms, max_ms, repeats, enqueue_ms, ahead, mhz and watts.
std::vector<Table::Column> time_columns();
/// Returns the cells in these columns.
std::vector<Cell> time_cells(const Times& times);

}  // namespace muonrt::tool
