#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command/shards.hpp"
#include "command/step/run.hpp"
#include "state/tensor_file.hpp"

namespace muonrt::tool {

/// Whether a path of --out is that of a folder: it ends with '/'.
bool is_folder(const std::string& out);

/// Where a run that writes there has its intent file, less the ending (publish_together); of a
/// folder beside its index.
std::string commit_path(const std::string& path);
/// Of a run that writes the folder in which that file lies.
std::string commit_path_around(const std::string& file);

/// Before the work. What takes the parameters, in their order: the file of --out; or files in its
/// folder and their index, cut by --max-shard-bytes, else as --params is cut. Throws where the
/// folder holds a model of other files, or one of them is another file of the command.
std::unique_ptr<ShardWriter> make_output(const StepArguments& arguments, const TensorModel& params,
                                         const std::vector<std::unique_ptr<TensorModel>>& grads);

/// Before the work: files that are to be written can be, and are no others of the command. A run
/// that goes on from files may replace them.
void check_outputs(const StepArguments& arguments);

}  // namespace muonrt::tool
