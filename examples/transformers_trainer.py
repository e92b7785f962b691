"""The Trainer of transformers: torchrun --nproc-per-node 4 -m examples.transformers_trainer."""

from contextlib import ExitStack

import torch
import torch.distributed.checkpoint as dcp
import transformers

import lightning_hier


class GroupsCallback(transformers.TrainerCallback):
    """Synchronises the models of groups. ``settings`` are those of ``lightning_hier.attach``."""

    def __init__(self, trainer, group_size, **settings):
        self.trainer, self.group_size, self.settings = trainer, group_size, settings
        self.evaluation = ExitStack()  # open while the module has the global model
        trainer.args.average_tokens_across_devices = False  # an exchange of all, at every step
        self.folder = "{.output_dir}/checkpoint-{.global_step}/blocks".format

    def on_train_begin(self, args, state, control, **kwargs):
        scaler, model = self.trainer.accelerator.scaler, self.trainer.model_wrapped
        groups = lightning_hier.Groups(self.group_size, device=args.device)
        settings = {"groups": groups, "total_steps": state.max_steps, "grad_scaler": scaler}
        self.blocks = lightning_hier.attach(model, kwargs["optimizer"], **self.settings, **settings)
        if state.global_step:  # of the checkpoint from which the Trainer resumes
            dcp.load({"blocks": self.blocks}, checkpoint_id=self.folder(args, state))

    def on_optimizer_step(self, args, state, control, **_):
        self.blocks.step()  # before the schedule of the learning rate

    def on_step_end(self, args, state, control, **_):
        if control.should_evaluate or control.should_save:
            self.evaluation.enter_context(self.blocks.global_model())

    def on_save(self, args, state, control, **_):
        dcp.save({"blocks": self.blocks}, checkpoint_id=self.folder(args, state))

    def on_step_begin(self, args, state, control, **_):
        self.evaluation.close()

    def on_epoch_end(self, args, state, control, **_):
        self.evaluation.close()
        if control.should_training_stop:
            self.blocks.finish()
        self.on_step_end(args, state, control)


if __name__ == "__main__":
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    parser.set_defaults(ddp_find_unused_parameters=False, ddp_broadcast_buffers=False)
    parser.set_defaults(learning_rate=3e-3, max_steps=200, eval_strategy="steps", eval_steps=50)
    (args,) = parser.parse_args_into_dataclasses()
    config = transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=48, n_layer=2)
    model = transformers.GPT2LMHeadModel(config)
    rows = torch.arange(32) * torch.randint(1, 9, (4096, 1)) % 64  # 0, 3, 6, 9, ...
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = transformers.Trainer(model, args, train_dataset=data[64:], eval_dataset=data[:64])
    trainer.add_callback(GroupsCallback(trainer, 2, block_sync=lightning_hier.BMUFAdam()))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
