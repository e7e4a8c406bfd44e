#pragma once

#include <cstdio>

#include "muonrt/muonrt.hpp"
#include "train/options.hpp"
#include "train/place.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// `muonrt train` on one rank: every run that the options ask for, then the result, which rank 0
/// prints and writes to the folder `out`. Collective.
/// @param corpus  of the preset's context; may be shared by ranks that are threads.
/// @param screen  where rank 0 shows progress. The result goes to standard output.
/// @return  the program's exit code: 0, or 128 and the signal that stopped it, as a shell has it.
/// Throws std::runtime_error or muonrt::Error.
int train(Comm& comm, const Options& options, const Corpus& corpus, std::FILE* screen,
          const Place& place = {});

}  // namespace muonrt::train
