"""``hookline runs``: commands for recorded runs. Each is imported when it is used."""

from hookline.cli.output import CommandGroup

app = CommandGroup(
    help="Inspect and manage recorded runs.",
    places={
        "list": "hookline.cli.runs.listing:list_command",
        "show": "hookline.cli.runs.show:show_command",
        "compare": "hookline.cli.runs.compare:compare_command",
        "importance": "hookline.cli.runs.importance:importance_command",
        "tail": "hookline.cli.runs.tail:tail_command",
        "media": "hookline.cli.runs.media:media_command",
        "log": "hookline.cli.runs.log:log_command",
        "code": "hookline.cli.runs.environment:code_command",
        "export": "hookline.cli.runs.transfer:export_command",
        "compress": "hookline.cli.runs.compress:compress_command",
        "edit": "hookline.cli.runs.edit:edit_command",
        "delete": "hookline.cli.runs.delete:delete_command",
        "verify": "hookline.cli.runs.verify:verify_command",
        "import": "hookline.cli.runs.transfer:import_command",
        "sync": "hookline.cli.runs.sync:sync_command",
    },
)
