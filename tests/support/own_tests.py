"""Maps each module of the package to the test files that test the module directly."""

import pathlib

# Further test files of a module. The file with the name of the module is not listed.
OWN = {
    "data/acting_specs": ["collect/test_collecting", "heads/test_masks"],
    "data/mask_layouts": ["heads/test_masks", "collect/test_masked_environments"],
    "data/tensor_noise": ["data/test_seeding", "properties/test_streams"],
    "data/tensor_specs": ["data/test_spaces"],
    "algorithm/inspection": [
        "callbacks/test_diagnostics",
        "algorithm/test_update_options",
        "test_agent_input",
    ],
    "algorithm/train_step": [
        "algorithm/test_update_options",
        "test_agent_input",
        "properties/test_truth_updates",
    ],
    "cli/argument_types": ["test_cli", "test_wrong_arguments"],
    "cli/agent_files": ["test_cli"],
    "cli/bench_env": ["test_wrong_arguments"],
    "cli/check_env": ["test_cli"],
    "cli/compare": ["test_wrong_arguments"],
    "cli/evaluate": ["test_cli", "test_wrong_arguments"],
    "cli/explain": ["functional/test_explanation", "test_wrong_arguments"],
    "cli/export": ["test_cli", "test_wrong_arguments"],
    "cli/plot": ["test_wrong_arguments", "experiments/test_policy_plots"],
    "cli/record": ["experiments/test_recording"],
    "cli/replay": ["experiments/test_replay"],
    "cli/shared_arguments": ["test_cli"],
    "cli/completion": ["test_cli"],
    "cli/info": ["experiments/test_run_info"],
    "cli/list_presets": ["test_cli"],
    "cli/entry": ["test_cli"],
    "cli/env_ids": ["test_cli", "test_wrong_arguments"],
    "cli/parsers": ["test_cli", "docs/test_documents", "test_wrong_arguments"],
    "cli/train": ["test_cli", "presets/test_presets"],
    "cli/train_callbacks": ["test_cli"],
    "cli/train_seeds": ["experiments/test_seed_processes"],
    "cli/train_messages": ["test_cli"],
    "cli/train_options": ["test_cli", "presets/test_presets"],
    "cli/train_settings": ["test_cli", "presets/test_presets", "test_wrong_arguments"],
    "cli/tune": ["experiments/test_tuning", "test_wrong_arguments"],
    "collect/acting_program": ["collect/test_acting_program"],
    "collect/batched_envs": [
        "collect/test_collecting",
        "collect/test_environments_that_fail",
        "collect/test_masked_environments",
        "collect/test_dropped_episodes",
    ],
    "collect/buffers": ["collect/test_collecting"],
    "collect/env_outputs": [
        "collect/test_observations",
        "collect/test_environments_that_fail",
        "collect/test_masked_environments",
    ],
    "collect/environments": ["collect/test_acting_program", "collect/test_collecting"],
    "collect/host_loop": [
        "collect/test_collecting",
        "collect/test_environments_that_fail",
        "collect/test_dropped_episodes",
    ],
    "collect/make_envs": [
        "collect/test_collecting",
        "collect/test_environments_that_fail",
        "collect/test_dropped_episodes",
        "test_agent_input",
    ],
    "collect/collected": ["collect/test_collecting", "collect/test_worker_pool"],
    "collect/env_factory": ["collect/test_collecting", "collect/test_worker_pool"],
    "collect/in_process": [
        "collect/test_collecting",
        "collect/test_environments_that_fail",
    ],
    "collect/litert_runner": ["collect/test_acting_program"],
    "collect/local_worker": ["collect/test_worker_pool"],
    "collect/worker_guard": ["collect/test_worker_pool"],
    "collect/comparison_inputs": ["collect/test_acting_program"],
    "collect/results": [
        "collect/test_environments_that_fail",
        "collect/test_dropped_episodes",
    ],
    "collect/scheduler": ["collect/test_collecting", "collect/test_dropped_episodes"],
    "collect/batched_tensor_env": ["collect/test_xla_rollout", "envs/test_envs"],
    "collect/vector_envs": [
        "collect/test_collecting",
        "collect/test_environments_that_fail",
        "collect/test_masked_environments",
        "collect/test_sub_envs",
    ],
    "data/action_masks": ["heads/test_masks", "collect/test_masked_environments"],
    "data/minibatches": ["algorithm/test_train_step"],
    "experiments/tuning_jobs": ["experiments/test_tuning"],
    "experiments/tuning_report": ["experiments/test_tuning"],
    "env_arguments": ["test_wrong_arguments"],
    "functional/explained_action": ["functional/test_explanation"],
    "presets/agent_settings": ["presets/test_presets", "test_wrong_arguments"],
    "policies/actor": [
        "collect/test_acting_program",
        "serving/test_exports",
        "heads/test_masks",
    ],
    "serving/live_policy": [
        "serving/test_exports",
        "test_agent_input",
        "policies/test_recurrent_training",
        "collect/test_masked_environments",
    ],
    "serving/formats": ["serving/test_exports", "serving/test_export_parity"],
    "serving/litert_files": ["serving/test_export_parity"],
    "serving/onnx_files": ["serving/test_export_parity"],
    "serving/policy_functions": ["serving/test_exports", "properties/test_every_space"],
    "serving/policy_metadata": ["serving/test_export_parity"],
    "serving/runtimes": ["serving/test_export_parity"],
    "serving/saved_model": ["serving/test_exports"],
    "layers/recording": ["layers/test_sample"],
    "score_function/checked_steps": ["score_function/test_model"],
    "score_function/conversion": ["score_function/test_model"],
    "score_function/estimator": ["properties/test_truth_samples"],
    "score_function/logged_training": ["score_function/test_logged_actions"],
    "score_function/reward_functions": ["score_function/test_model"],
    "testing/logged_actions": ["properties/test_truth_logged_actions"],
    "testing/sample_paths": ["properties/test_truth_samples"],
    "training/agent_state": ["training/test_recorder"],
    "training/callback_states": ["training/test_recorder"],
    "testing/environments": ["properties/test_check_env"],
    "testing/export_report": ["serving/test_export_check", "serving/test_export_parity"],
    "training/collector": [
        "collect/test_acting_program",
        "collect/test_xla_rollout",
    ],
    "training/interruption": ["training/test_recorder"],
    "training/learner": [
        "algorithm/test_update_options",
        "algorithm/test_train_step",
        "properties/test_streams",
        "collect/test_xla_rollout",
    ],
    "training/loop": ["training/test_recorder", "callbacks/test_keras_callbacks"],
    "training/trainer": [
        "test_agent",
        "collect/test_xla_rollout",
        "properties/test_streams",
    ],
}


def own_tests(module):
    """Returns the paths of the test files of `"folder/module.py"`.

    The first path is `tests/folder/test_module.py`, which may not exist.
    """
    path = pathlib.PurePath(module)
    further = OWN.get(str(path.with_suffix("")), ())
    names = [path.parent / f"test_{path.stem}", *further]
    return tuple(f"tests/{name}.py" for name in names)
